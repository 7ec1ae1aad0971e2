/* Bit masks in plain C: the loops for other CPUs, and for the last few elements of the vector levels. */
#include "halves.h"
#include "kernels.h"

#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* One comparison for all tests: `test` is a constant wherever this is inlined. Comparisons are written so that NaN
 * falls as the enum's names say. float16 and bfloat16 arrive widened. */
#define PASSES(x, test, low, high)                                                                                     \
    ((test) == ABOVE     ? !((x) <= (low))                                                                             \
     : (test) == GREATER ? (x) > (low)                                                                                 \
     : (test) == INSIDE  ? !((x) <= (low) || (x) >= (high))                                                            \
                         : (x) > (low) && (x) < (high))

static ALWAYS_INLINE float float32_at(const void *source, int64_t i) { return ((const float *)source)[i]; }
static ALWAYS_INLINE double float64_at(const void *source, int64_t i) { return ((const double *)source)[i]; }
static ALWAYS_INLINE float float16_at(const void *source, int64_t i) {
    return float_of_half(((const uint16_t *)source)[i]);
}
static ALWAYS_INLINE float bfloat16_at(const void *source, int64_t i) {
    return float_of_bits((uint32_t)((const uint16_t *)source)[i] << 16);
}

/* bits[i] = answer, an expression in i. The byte is put together in a register; the last one may be partial. */
#define PACK(answer)                                                                                                   \
    for (int64_t first = 0; first < n; first += 8) {                                                                   \
        unsigned byte = 0;                                                                                             \
        for (int64_t i = first, end = smaller(first + 8, n); i < end; i++) byte |= (unsigned)(answer) << (i - first);  \
        bits[first / 8] = (uint8_t)byte;                                                                               \
    }

#define PACK_TESTS(element_at, type)                                                                                   \
    {                                                                                                                  \
        type low = (type)question.low, high = (type)question.high;                                                     \
        switch (question.test) {                                                                                       \
        case ABOVE: PACK(PASSES(element_at(source, i), ABOVE, low, high)) break;                                       \
        case GREATER: PACK(PASSES(element_at(source, i), GREATER, low, high)) break;                                   \
        case INSIDE: PACK(PASSES(element_at(source, i), INSIDE, low, high)) break;                                     \
        default: PACK(PASSES(element_at(source, i), BETWEEN, low, high)) break;                                        \
        }                                                                                                              \
    }

static void pack_nonzero(const void *source, int64_t n, int element_nbytes, uint8_t *bits) {
    switch (element_nbytes) {
    case 1: PACK(((const uint8_t *)source)[i] != 0) break;
    case 2: PACK(((const uint16_t *)source)[i] != 0) break;
    case 4: PACK(((const uint32_t *)source)[i] != 0) break;
    default: PACK(((const uint64_t *)source)[i] != 0) break;
    }
}

static void pack_mask(const void *source, int64_t n, struct question question, uint8_t *bits) {
    if (question.test == NONZERO) {
        pack_nonzero(source, n, question.element_nbytes, bits);
        return;
    }
    switch (question.element) {
    case FLOAT32: PACK_TESTS(float32_at, float) break;
    case FLOAT64: PACK_TESTS(float64_at, double) break;
    case FLOAT16: PACK_TESTS(float16_at, float) break;
    default: PACK_TESTS(bfloat16_at, float) break;
    }
}

#define UNPACK(type)                                                                                                   \
    {                                                                                                                  \
        type *elements = target, yes = (type)on, no = (type)off;                                                       \
        for (int64_t i = 0; i < n; i++) elements[i] = bit_at(bits, i) ? yes : no;                                      \
    }

static void unpack_mask(const uint8_t *bits, int64_t n, int element_nbytes, uint64_t on, uint64_t off, void *target) {
    switch (element_nbytes) {
    case 1: UNPACK(uint8_t) break;
    case 2: UNPACK(uint16_t) break;
    case 4: UNPACK(uint32_t) break;
    default: UNPACK(uint64_t) break;
    }
}

/* A factor of one copies, so that a signalling NaN keeps its bits. Elements travel through registers as they are: the
 * x87 unit, which would change them, is not used on any CPU this is compiled for. */
#define MASK_GRADIENT(name, type)                                                                                      \
    static void name(const type *gradient, const uint8_t *bits, int64_t n, struct factors factors, type *target) {     \
        type on = (type)factors.on, off = (type)factors.off;                                                           \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            type factor = bit_at(bits, i) ? on : off;                                                                  \
            if (factors.zero_off && !bit_at(bits, i))                                                                  \
                target[i] = 0;                                                                                         \
            else if (factor == 1)                                                                                      \
                memmove(&target[i], &gradient[i], sizeof(type));                                                       \
            else                                                                                                       \
                target[i] = gradient[i] * factor;                                                                      \
        }                                                                                                              \
    }

MASK_GRADIENT(mask_gradient_f32, float)
MASK_GRADIENT(mask_gradient_f64, double)

void enter_masks_generic(struct inner *table) {
    table->pack_mask = pack_mask;
    table->unpack_mask = unpack_mask;
    table->mask_gradient_f32 = mask_gradient_f32;
    table->mask_gradient_f64 = mask_gradient_f64;
}
