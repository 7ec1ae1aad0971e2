/* Short floats: reduce and expand. See ../formats.py and ../reference_floats.py. */
#include "kernels.h"

struct conversion {
    float *values;
    enum format format;
    uint8_t *packed;
};

static void reduce_chunk(void *context, int64_t begin, int64_t end) {
    struct conversion *job = context;
    uint8_t *packed = job->packed + packed_nbytes(job->format, begin);
    inner()->reduce[job->format](job->values + begin, end - begin, packed);
}

EXPORT void vdnn_reduce(const float *source, int64_t n, int format, uint8_t *target, int threads) {
    struct conversion job = {(float *)source, (enum format)format, target}; /* only read */
    in_chunks(n, CHUNK, 4 * n, threads, reduce_chunk, &job);
}

static void expand_chunk(void *context, int64_t begin, int64_t end) {
    struct conversion *job = context;
    const uint8_t *packed = job->packed + packed_nbytes(job->format, begin);
    inner()->expand[job->format](packed, end - begin, job->values + begin);
}

EXPORT void vdnn_expand(const uint8_t *source, int64_t n, int format, float *target, int threads) {
    struct conversion job = {target, (enum format)format, (uint8_t *)source}; /* only read */
    in_chunks(n, CHUNK, 4 * n, threads, expand_chunk, &job);
}
