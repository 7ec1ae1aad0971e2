/* Sparse data, CSR form: csr_encode and csr_decode. See ../sparse_layout.py and ../reference_sparse.py.
 *
 * Sixteen rows are a block of the mask form. Its bits, kept on the stack, say which values to pack, and their positions
 * are the columns. Note: [One pass] in sparse.c tells how tiles learn where they begin.
 */
#include "sparse.h"

#include <string.h>

enum { ROWS = BLOCK / ROW };

struct encoding {
    const uint32_t *source;
    int64_t n;
    enum format format;
    uint32_t *rows;
    uint8_t *columns, *values;
    int64_t capacity;
    struct turn turn;
};

/* Where each row of a block begins; returns where the block ends. */
static int64_t write_rows(const uint8_t *bits, int64_t n, int64_t start, uint32_t *rows) {
    for (int64_t first = 0; first < n; first += ROW) {
        *rows++ = (uint32_t)start;
        start += inner()->count_bits(bits + first / 8, ceil_div(smaller(ROW, n - first), 8));
    }
    return start;
}

static void fill_block(const struct encoding *job, int64_t block, const uint8_t *bits, int64_t n, int64_t start) {
    uint8_t columns[BLOCK + SLACK];
    memcpy(job->columns + start, columns, (size_t)inner()->columns(bits, n, columns));
    write_values((const uint8_t *)(job->source + block * BLOCK), bits, n, 4, job->format,
                 job->values + values_nbytes(start, 4, job->format));
}

static void encode_tile(void *context, int64_t begin, int64_t end) {
    struct encoding *job = context;
    const struct question nonzero = {UNSIGNED, NONZERO, 4, 0, 0};
    uint8_t bits[TILE * BLOCK / 8];
    int64_t n = smaller(end * BLOCK, job->n) - begin * BLOCK;
    inner()->pack_mask(job->source + begin * BLOCK, n, nonzero, bits);
    int64_t start = take_turn(&job->turn, begin / TILE, inner()->count_bits(bits, ceil_div(n, 8)));
    for (int64_t block = begin; block < end; block++) {
        const uint8_t *own = bits + (block - begin) * BLOCK / 8;
        int64_t own_n = smaller(BLOCK, job->n - block * BLOCK);
        int64_t next = write_rows(own, own_n, start, job->rows + block * ROWS);
        if (next <= job->capacity) fill_block(job, block, own, own_n, start);
        start = next;
    }
}

EXPORT int64_t vdnn_csr_encode(const uint32_t *source, int64_t n, int format, uint32_t *rows, uint8_t *columns,
                               uint8_t *values, int64_t capacity, int threads) {
    struct encoding job = {source, n, (enum format)format, rows, columns, values, capacity, {0, 0}};
    in_chunks(ceil_div(n, BLOCK), TILE, 4 * n, threads, encode_tile, &job);
    rows[ceil_div(n, ROW)] = (uint32_t)job.turn.offset;
    return job.turn.offset;
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
