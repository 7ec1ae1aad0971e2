/* Sparse data, mask form: sparse_encode and sparse_decode. See ../sparse_layout.py and ../reference_sparse.py.
 *
 * Note: [One pass]. Where a block's values begin depends on all blocks before it, yet the data is read from memory once
 * and by all threads. A tile of blocks gets its bits and sizes first; then its thread waits for the offset at which the
 * previous tile ends, adds its own size, passes the sum on and packs the values, from its cache, while others do the
 * same with theirs. Merrill and Garland's single-pass scan (2016) works so on a GPU. Tiles are begun in order, so the
 * one that is waited for is always under way.
 */
#include "sparse.h"

#include <sched.h>
#include <string.h>

int64_t values_nbytes(int64_t count, int element_nbytes, enum format format) {
    return format == RAW ? count * element_nbytes : packed_nbytes(format, count);
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

int64_t take_turn(struct turn *turn, int64_t tile, int64_t size) {
    for (int tries = 0; __atomic_load_n(&turn->tile, __ATOMIC_ACQUIRE) != tile; tries++)
        if (tries > 1000) sched_yield(); /* the thread that is waited for may be waiting for this core */
    int64_t start = turn->offset;
    turn->offset = start + size;
    __atomic_store_n(&turn->tile, tile + 1, __ATOMIC_RELEASE);
    return start;
}

struct encoding {
    const uint8_t *source;
    int64_t n;
    int element_nbytes;
    enum format format;
    uint8_t *bits;
    int64_t *starts;
    uint8_t *values;
    int64_t capacity;
    struct turn turn;
};

/* Bits and size of one block. */
static int64_t measure_block(const struct encoding *job, int64_t block) {
    const struct question nonzero = {UNSIGNED, NONZERO, job->element_nbytes, 0, 0};
    int64_t first = block * BLOCK, n = smaller(BLOCK, job->n - first);
    inner()->pack_mask(job->source + first * job->element_nbytes, n, nonzero, job->bits + first / 8);
    return values_nbytes(inner()->count_bits(job->bits + first / 8, ceil_div(n, 8)), job->element_nbytes, job->format);
}

static void fill_block(const struct encoding *job, int64_t block, int64_t start) {
    int64_t first = block * BLOCK, n = smaller(BLOCK, job->n - first);
    write_values(job->source + first * job->element_nbytes, job->bits + first / 8, n, job->element_nbytes, job->format,
                 job->values + start);
}

static void encode_tile(void *context, int64_t begin, int64_t end) {
    struct encoding *job = context;
    int64_t sizes[TILE], total = 0;
    for (int64_t block = begin; block < end; block++) total += sizes[block - begin] = measure_block(job, block);
    int64_t start = take_turn(&job->turn, begin / TILE, total);
    for (int64_t block = begin; block < end; block++) {
        job->starts[block] = start;
        int64_t next = start + sizes[block - begin];
        if (next <= job->capacity) fill_block(job, block, start);
        start = next;
    }
}

EXPORT int64_t vdnn_sparse_encode(const uint8_t *source, int64_t n, int element_nbytes, int format, uint8_t *bits,
                                  int64_t *starts, uint8_t *values, int64_t capacity, int threads) {
    struct encoding job = {source, n, element_nbytes, (enum format)format, bits, starts, values, capacity, {0, 0}};
    in_chunks(ceil_div(n, BLOCK), TILE, n * element_nbytes, threads, encode_tile, &job);
    return starts[ceil_div(n, BLOCK)] = job.turn.offset;
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
        inner()->expand[job->format](values, inner()->count_bits(bits, ceil_div(n, 8)), (float *)expanded);
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
