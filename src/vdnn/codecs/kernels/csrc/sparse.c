/* Sparse data, mask form: sparse_encode and sparse_decode. See ../sparse_layout.py and ../reference_sparse.py.
 *
 * Encoding goes over the data twice. First every block gets its bits and its size; a running sum of the sizes says where
 * each block's values begin; then the blocks are packed, in any order. Short floats are packed as float32 into a buffer
 * on the stack first, and reduced from there.
 */
#include "sparse.h"

#include <string.h>

/* Blocks between which the running sum is taken: what one thread read for the bits is then still in its cache (1 MiB)
 * when it packs. */
enum { TILE = 64 };

int64_t count_bits(const uint8_t *bits, int64_t nbytes) {
    int64_t count = 0, i = 0;
    for (; i + 8 <= nbytes; i += 8) {
        uint64_t word;
        memcpy(&word, bits + i, sizeof word);
        count += __builtin_popcountll(word);
    }
    for (; i < nbytes; i++) count += __builtin_popcount(bits[i]);
    return count;
}

int64_t values_nbytes(int64_t count, int element_nbytes, enum format format) {
    switch (format) {
    case RAW: return count * element_nbytes;
    case FP10: return 4 * ceil_div(count, 3);
    case FP8: return count;
    default: return 2 * count;
    }
}

void write_values(const uint8_t *source, const uint8_t *bits, int64_t n, int element_nbytes, enum format format,
                  uint8_t *values) {
    uint32_t packed[BLOCK + SLACK];
    int64_t count = element_nbytes == 4 ? inner()->compact4((const uint32_t *)source, bits, n, packed)
                                        : inner()->compact2((const uint16_t *)source, bits, n, (uint16_t *)packed);
    if (format == RAW)
        memcpy(values, packed, (size_t)(count * element_nbytes));
    else
        inner()->reduce[format]((const float *)packed, count, values);
}

struct encoding {
    const uint8_t *source;
    int64_t n, first_block; /* of the tile that is worked on */
    int element_nbytes;
    enum format format;
    uint8_t *bits;
    int64_t *starts;
    uint8_t *values;
    int64_t capacity;
};

static void measure_blocks(void *context, int64_t begin, int64_t end) {
    struct encoding *job = context;
    struct question nonzero = {UNSIGNED, NONZERO, job->element_nbytes, 0, 0};
    for (int64_t block = job->first_block + begin; block < job->first_block + end; block++) {
        int64_t first = block * BLOCK, n = smaller(BLOCK, job->n - first);
        inner()->pack_mask(job->source + first * job->element_nbytes, n, nonzero, job->bits + first / 8);
        int64_t count = count_bits(job->bits + first / 8, ceil_div(n, 8));
        job->starts[block + 1] = values_nbytes(count, job->element_nbytes, job->format);
    }
}

static void fill_blocks(void *context, int64_t begin, int64_t end) {
    struct encoding *job = context;
    for (int64_t block = job->first_block + begin; block < job->first_block + end; block++) {
        if (job->starts[block + 1] > job->capacity) return;
        int64_t first = block * BLOCK, n = smaller(BLOCK, job->n - first);
        write_values(job->source + first * job->element_nbytes, job->bits + first / 8, n, job->element_nbytes,
                     job->format, job->values + job->starts[block]);
    }
}

EXPORT int64_t vdnn_sparse_encode(const uint8_t *source, int64_t n, int element_nbytes, int format, uint8_t *bits,
                                  int64_t *starts, uint8_t *values, int64_t capacity, int threads) {
    struct encoding job = {source, n, 0, element_nbytes, (enum format)format, bits, starts, values, capacity};
    int64_t num_blocks = ceil_div(n, BLOCK), nbytes = n * element_nbytes;
    int team = team_size(nbytes, threads);
    int64_t tile = team == 1 ? TILE : num_blocks; /* a team would meet twice per tile, and wait for its slowest */
    starts[0] = 0;
    for (int64_t first = 0; first < num_blocks; first += tile) {
        int64_t blocks = smaller(tile, num_blocks - first);
        job.first_block = first;
        in_chunks(blocks, TILE, nbytes, team, measure_blocks, &job);
        for (int64_t block = first; block < first + blocks; block++) starts[block + 1] += starts[block];
        in_chunks(blocks, TILE, nbytes, team, fill_blocks, &job);
    }
    return starts[num_blocks];
}

struct decoding {
    const uint8_t *bits;
    const int64_t *starts;
    const uint8_t *values, *values_end;
    int element_nbytes;
    enum format format;
    int64_t n;
    uint8_t *target;
};

/* Four-byte values stand where the format is raw; short floats are expanded onto the stack, as many as bits are set. */
static void scatter_block(const struct decoding *job, const uint8_t *bits, int64_t n, const uint8_t *values,
                          uint8_t *target) {
    uint32_t expanded[BLOCK + SLACK];
    if (job->format != RAW) {
        inner()->expand[job->format](values, count_bits(bits, ceil_div(n, 8)), (float *)expanded);
        inner()->scatter4(expanded, expanded + BLOCK + SLACK, bits, n, (uint32_t *)target);
    } else if (job->element_nbytes == 4) {
        const uint32_t *end = (const uint32_t *)values + (job->values_end - values) / 4;
        inner()->scatter4((const uint32_t *)values, end, bits, n, (uint32_t *)target);
    } else {
        const uint16_t *end = (const uint16_t *)values + (job->values_end - values) / 2;
        inner()->scatter2((const uint16_t *)values, end, bits, n, (uint16_t *)target);
    }
}

static void decode_blocks(void *context, int64_t begin, int64_t end) {
    const struct decoding *job = context;
    for (int64_t block = begin; block < end; block++) {
        int64_t first = block * BLOCK, n = smaller(BLOCK, job->n - first);
        scatter_block(job, job->bits + first / 8, n, job->values + job->starts[block],
                      job->target + first * job->element_nbytes);
    }
}

EXPORT void vdnn_sparse_decode(const uint8_t *bits, const int64_t *starts, const uint8_t *values, int64_t values_nbytes,
                               int64_t n, int element_nbytes, int format, uint8_t *target, int threads) {
    struct decoding job = {bits,           starts,              values, values + values_nbytes,
                           element_nbytes, (enum format)format, n,      target};
    in_chunks(ceil_div(n, BLOCK), CHUNK / BLOCK, n * element_nbytes, threads, decode_blocks, &job);
}
