/* Bit masks: pack_mask, unpack_mask, masked_gradient. See ../reference_masks.py. */
#include "kernels.h"

struct packing {
    const uint8_t *source;
    struct question question;
    uint8_t *bits;
};

static void pack_chunk(void *context, int64_t begin, int64_t end) {
    struct packing *job = context;
    const uint8_t *source = job->source + begin * job->question.element_nbytes;
    inner()->pack_mask(source, end - begin, job->question, job->bits + begin / 8);
}

EXPORT void vdnn_pack_mask(const uint8_t *source, int64_t n, int element, int element_nbytes, int test, double low,
                           double high, uint8_t *bits, int threads) {
    struct question question = {(enum element)element, (enum test)test, element_nbytes, low, high};
    struct packing job = {source, question, bits};
    in_chunks(n, CHUNK, n * element_nbytes, threads, pack_chunk, &job);
}

struct unpacking {
    const uint8_t *bits;
    int element_nbytes;
    uint64_t on, off;
    uint8_t *target;
};

static void unpack_chunk(void *context, int64_t begin, int64_t end) {
    struct unpacking *job = context;
    uint8_t *target = job->target + begin * job->element_nbytes;
    inner()->unpack_mask(job->bits + begin / 8, end - begin, job->element_nbytes, job->on, job->off, target);
}

EXPORT void vdnn_unpack_mask(const uint8_t *bits, int64_t n, int element_nbytes, uint64_t on, uint64_t off,
                             uint8_t *target, int threads) {
    struct unpacking job = {bits, element_nbytes, on, off, target};
    in_chunks(n, CHUNK, n * element_nbytes, threads, unpack_chunk, &job);
}

struct masking {
    const void *gradient;
    const uint8_t *bits;
    struct factors factors;
    void *target;
};

static void mask_chunk_f32(void *context, int64_t begin, int64_t end) {
    struct masking *job = context;
    inner()->mask_gradient_f32((const float *)job->gradient + begin, job->bits + begin / 8, end - begin, job->factors,
                               (float *)job->target + begin);
}

static void mask_chunk_f64(void *context, int64_t begin, int64_t end) {
    struct masking *job = context;
    inner()->mask_gradient_f64((const double *)job->gradient + begin, job->bits + begin / 8, end - begin, job->factors,
                               (double *)job->target + begin);
}

EXPORT void vdnn_masked_gradient(const void *gradient, const uint8_t *bits, int64_t n, int element_nbytes, double on,
                                 double off, int zero_off, void *target, int threads) {
    struct masking job = {gradient, bits, {on, off, zero_off}, target};
    chunk_work *work = element_nbytes == 4 ? mask_chunk_f32 : mask_chunk_f64;
    in_chunks(n, CHUNK, 2 * n * element_nbytes, threads, work, &job);
}
