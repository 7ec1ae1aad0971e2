/* The codec kernels in C: what ../native.py calls, and what the files of this folder share.
 *
 * Enters: pointers and sizes, checked by native.py. Leaves: results in the caller's memory. Nothing here knows Python
 * or PyTorch, allocates memory or keeps state but for the dispatch level. The definition of every function is the numpy
 * reference beside this folder; results are equal to it bit for bit at every level.
 *
 * Three layers, top down:
 *
 *   masks.c floats.c windows.c sparse.c csr.c   one exported function per kernel: cuts the work into chunks
 *   threads.c                                   runs the chunks on the threads of one OpenMP team
 *   *_generic.c *_avx2.c *_avx512.c             inner loops over one chunk, chosen by level.c for this CPU
 */
#ifndef VDNN_KERNELS_H
#define VDNN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* native.py refuses a library with another number: after an update the old build may still lie about. */
#define VDNN_ABI 1

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define VDNN_X86 1
#endif

/* As in ../tests_of_elements.py. */
enum test { ABOVE, GREATER, INSIDE, BETWEEN, NONZERO };

/* What a test reads. The four floats are compared; UNSIGNED only asks whether any bit is set. */
enum element { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, UNSIGNED };

/* As in ../native.py. RAW is an element's own four or two bytes. */
enum format { FP16, BF16, FP10, FP8, NUM_FORMATS, RAW = NUM_FORMATS };

enum level { GENERIC, AVX2, AVX512 };

enum {
    BLOCK = 4096, /* elements of the sparse mask form that share one offset; as in ../sparse_layout.py */
    ROW = 256,    /* elements of a CSR row */
    CHUNK = 24 * BLOCK, /* elements one thread takes at a time: 384 KiB of float32, and whole words of fp10 */
};

/* A question about elements, for pack_mask. */
struct question {
    enum element element;
    enum test test;
    int element_nbytes;
    double low, high;
};

/* What a gradient is multiplied with: `on` where the bit is set, `off` elsewhere, or +0.0 there when zero_off. */
struct factors {
    double on, off;
    int zero_off;
};

/* The inner loops. n counts elements; a mask begins at bit 0 of its first byte, and its last byte is padded with zeros.
 *
 * compact writes the elements whose bit is set one after the other and returns how many; it may write SLACK elements
 * past them, so that a whole vector can be stored at a time. scatter is its inverse with zeros in between; values ends
 * at values_end and is never read past it. columns writes the positions of set bits within their rows.
 */
struct inner {
    void (*pack_mask)(const void *source, int64_t n, struct question question, uint8_t *bits);
    void (*unpack_mask)(const uint8_t *bits, int64_t n, int element_nbytes, uint64_t on, uint64_t off, void *target);
    void (*mask_gradient_f32)(const float *gradient, const uint8_t *bits, int64_t n, struct factors, float *target);
    void (*mask_gradient_f64)(const double *gradient, const uint8_t *bits, int64_t n, struct factors, double *target);
    void (*reduce[NUM_FORMATS])(const float *source, int64_t n, uint8_t *target);
    void (*expand[NUM_FORMATS])(const uint8_t *source, int64_t n, float *target);
    int64_t (*compact4)(const uint32_t *source, const uint8_t *bits, int64_t n, uint32_t *target);
    int64_t (*compact2)(const uint16_t *source, const uint8_t *bits, int64_t n, uint16_t *target);
    void (*scatter4)(const uint32_t *values, const uint32_t *values_end, const uint8_t *bits, int64_t n,
                     uint32_t *target);
    void (*scatter2)(const uint16_t *values, const uint16_t *values_end, const uint8_t *bits, int64_t n,
                     uint16_t *target);
    int64_t (*count_bits)(const uint8_t *bits, int64_t nbytes);
    int64_t (*columns)(const uint8_t *bits, int64_t n, uint8_t *target);
};

enum { SLACK = 64 };

/* The inner loops of the level in use; each *_generic.c, *_avx2.c, *_avx512.c enters its own into a table. */
const struct inner *inner(void);
const struct inner *generic_inner(void); /* also for the last elements, which fill no vector */
void enter_masks_generic(struct inner *table);
void enter_floats_generic(struct inner *table);
void enter_compaction_generic(struct inner *table);
#ifdef VDNN_X86
void enter_masks_avx2(struct inner *table);
void enter_floats_avx2(struct inner *table);
void enter_compaction_avx2(struct inner *table);
void enter_compaction_avx512(struct inner *table);
#endif

/* Calls work(context, begin, end) for [0, n) in chunks, on up to `threads` threads (0: as many as OpenMP would use).
 * nbytes is what the whole moves: little work stays on the calling thread. Chunks are begun in ascending order, so a
 * chunk may wait for something an earlier one does. */
typedef void chunk_work(void *context, int64_t begin, int64_t end);
void in_chunks(int64_t n, int64_t chunk, int64_t nbytes, int threads, chunk_work *work, void *context);
int team_size(int64_t nbytes, int threads);

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int bit_at(const uint8_t *bits, int64_t i) { return bits[i / 8] >> (i % 8) & 1; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Bytes of n short floats. No default: a format without its case does not compile (-Werror=switch in setup.py). */
static inline int64_t packed_nbytes(enum format format, int64_t n) {
    switch (format) {
    case FP16:
    case BF16: return 2 * n;
    case FP10: return 4 * ceil_div(n, 3);
    case FP8: return n;
    case RAW: break; /* as many as the elements have, which the caller knows */
    }
    return 0;
}

/* For each byte of a mask: the positions of its set bits, ascending, one per byte; and for each bit how many set bits
 * come before it. Written out by tables.c at compile time. */
extern const uint64_t PLACES[256];
extern const uint64_t RANKS[256];

#endif
