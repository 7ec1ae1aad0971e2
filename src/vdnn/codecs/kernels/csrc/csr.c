/* Sparse data, CSR form: csr_encode and csr_decode. See ../sparse_layout.py and ../reference_sparse.py.
 *
 * Sixteen rows are one block of the mask form, so the bits of a block, kept on the stack, serve both directions of
 * thinking: the values are packed by them, and the columns are their positions.
 */
#include "sparse.h"

#include <string.h>

enum { ROWS = BLOCK / ROW };

struct encoding {
    const uint32_t *source;
    int64_t n, first_block; /* of the tile that is worked on */
    enum format format;
    uint32_t *rows;
    uint8_t *columns, *values;
    int64_t capacity;
};

static int64_t block_bits(const struct encoding *job, int64_t block, uint8_t bits[BLOCK / 8]) {
    struct question nonzero = {UNSIGNED, NONZERO, 4, 0, 0};
    int64_t n = smaller(BLOCK, job->n - block * BLOCK);
    inner()->pack_mask(job->source + block * BLOCK, n, nonzero, bits);
    return n;
}

/* Afterwards rows[r + 1] is the number of non-zeros of row r. */
static void measure_blocks(void *context, int64_t begin, int64_t end) {
    struct encoding *job = context;
    uint8_t bits[BLOCK / 8];
    for (int64_t block = job->first_block + begin; block < job->first_block + end; block++) {
        int64_t n = block_bits(job, block, bits);
        for (int64_t first = 0; first < n; first += ROW) {
            int64_t nbytes = ceil_div(smaller(ROW, n - first), 8);
            job->rows[block * ROWS + first / ROW + 1] = (uint32_t)count_bits(bits + first / 8, nbytes);
        }
    }
}

static void fill_blocks(void *context, int64_t begin, int64_t end) {
    struct encoding *job = context;
    int64_t num_rows = ceil_div(job->n, ROW);
    uint8_t bits[BLOCK / 8], columns[BLOCK + SLACK];
    for (int64_t block = job->first_block + begin; block < job->first_block + end; block++) {
        int64_t start = job->rows[block * ROWS], next = job->rows[smaller((block + 1) * ROWS, num_rows)];
        if (next > job->capacity) return;
        int64_t n = block_bits(job, block, bits);
        memcpy(job->columns + start, columns, (size_t)inner()->columns(bits, n, columns));
        write_values((const uint8_t *)(job->source + block * BLOCK), bits, n, 4, job->format,
                     job->values + values_nbytes(start, 4, job->format));
    }
}

/* In tiles as the mask form; a tile is 1 MiB of elements. */
EXPORT int64_t vdnn_csr_encode(const uint32_t *source, int64_t n, int format, uint32_t *rows, uint8_t *columns,
                               uint8_t *values, int64_t capacity, int threads) {
    enum { TILE = 64 };
    struct encoding job = {source, n, 0, (enum format)format, rows, columns, values, capacity};
    int64_t num_blocks = ceil_div(n, BLOCK), num_rows = ceil_div(n, ROW);
    int team = team_size(4 * n, threads);
    int64_t tile = team == 1 ? TILE : num_blocks;
    rows[0] = 0;
    for (int64_t first = 0; first < num_blocks; first += tile) {
        int64_t blocks = smaller(tile, num_blocks - first), last_row = smaller((first + blocks) * ROWS, num_rows);
        job.first_block = first;
        in_chunks(blocks, TILE, 4 * n, team, measure_blocks, &job);
        for (int64_t row = first * ROWS; row < last_row; row++) rows[row + 1] += rows[row];
        in_chunks(blocks, TILE, 4 * n, team, fill_blocks, &job);
    }
    return rows[num_rows];
}

struct decoding {
    const uint32_t *rows;
    const uint8_t *columns, *values;
    enum format format;
    int64_t n;
    uint32_t *target;
};

/* Non-zeros are few where this form pays: clear the row, then put each value at its column. */
static void decode_blocks(void *context, int64_t begin, int64_t end) {
    const struct decoding *job = context;
    uint32_t expanded[ROW];
    for (int64_t row = begin * ROWS, last = smaller(end * ROWS, ceil_div(job->n, ROW)); row < last; row++) {
        int64_t start = job->rows[row], count = smaller(job->rows[row + 1] - start, ROW);
        int64_t n = smaller(ROW, job->n - row * ROW);
        const uint8_t *columns = job->columns + start, *packed = job->values + values_nbytes(start, 4, job->format);
        uint32_t *target = job->target + row * ROW;
        if (job->format == RAW)
            memcpy(expanded, packed, (size_t)(4 * count));
        else
            inner()->expand[job->format](packed, count, (float *)expanded);
        memset(target, 0, (size_t)(4 * n));
        for (int64_t k = 0; k < count; k++)
            if (columns[k] < n) target[columns[k]] = expanded[k];
    }
}

EXPORT void vdnn_csr_decode(const uint32_t *rows, const uint8_t *columns, const uint8_t *values, int64_t n, int format,
                            uint32_t *target, int threads) {
    struct decoding job = {rows, columns, values, (enum format)format, n, target};
    in_chunks(ceil_div(n, BLOCK), CHUNK / BLOCK, 4 * n, threads, decode_blocks, &job);
}
