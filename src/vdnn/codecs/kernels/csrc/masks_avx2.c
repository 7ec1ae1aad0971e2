/* Bit masks with AVX2: eight elements make one byte of a mask, and the other way round. */
#include "kernels.h"

#ifdef VDNN_X86
#include "avx2.h"

#include <string.h>

/* The two halves of a test as comparison predicates. U passes NaN, O fails it, Q raises no flag. */
#define COMPARE_ABOVE(x, suffix) _mm256_cmp_##suffix(x, low, _CMP_NLE_UQ)
#define COMPARE_GREATER(x, suffix) _mm256_cmp_##suffix(x, low, _CMP_GT_OQ)
#define COMPARE_INSIDE(x, suffix)                                                                                      \
    _mm256_and_##suffix(_mm256_cmp_##suffix(x, low, _CMP_NLE_UQ), _mm256_cmp_##suffix(x, high, _CMP_NGE_UQ))
#define COMPARE_BETWEEN(x, suffix)                                                                                     \
    _mm256_and_##suffix(_mm256_cmp_##suffix(x, low, _CMP_GT_OQ), _mm256_cmp_##suffix(x, high, _CMP_LT_OQ))

#define MASK_PS(test, i) _mm256_movemask_ps(COMPARE_##test(EIGHT(i), ps))
#define MASK_PD(test, i)                                                                                               \
    (_mm256_movemask_pd(COMPARE_##test(FOUR(i), pd)) | _mm256_movemask_pd(COMPARE_##test(FOUR((i) + 4), pd)) << 4)

#define PACK(test, mask)                                                                                               \
    for (; i + 8 <= n; i += 8) bits[i / 8] = (uint8_t)mask(test, i);                                                   \
    break

/* Elements i to i + 7 as float32, whatever they are stored as. The loop over them exists once per element and test. */
#define PACK_TESTS(mask)                                                                                               \
    switch (question.test) {                                                                                           \
    case ABOVE: PACK(ABOVE, mask);                                                                                     \
    case GREATER: PACK(GREATER, mask);                                                                                 \
    case INSIDE: PACK(INSIDE, mask);                                                                                   \
    default: PACK(BETWEEN, mask);                                                                                      \
    }

WITH_AVX2 static int64_t pack_float32(const float *source, int64_t n, struct question question, uint8_t *bits) {
    __m256 low = _mm256_set1_ps((float)question.low), high = _mm256_set1_ps((float)question.high);
    int64_t i = 0;
#define EIGHT(i) _mm256_loadu_ps(source + (i))
    PACK_TESTS(MASK_PS)
#undef EIGHT
    return i;
}

WITH_AVX2 static int64_t pack_float64(const double *source, int64_t n, struct question question, uint8_t *bits) {
    __m256d low = _mm256_set1_pd(question.low), high = _mm256_set1_pd(question.high);
    int64_t i = 0;
#define FOUR(i) _mm256_loadu_pd(source + (i))
    PACK_TESTS(MASK_PD)
#undef FOUR
    return i;
}

WITH_AVX2 static int64_t pack_float16(const uint16_t *source, int64_t n, struct question question, uint8_t *bits) {
    __m256 low = _mm256_set1_ps((float)question.low), high = _mm256_set1_ps((float)question.high);
    int64_t i = 0;
#define EIGHT(i) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + (i))))
    PACK_TESTS(MASK_PS)
#undef EIGHT
    return i;
}

WITH_AVX2 static int64_t pack_bfloat16(const uint16_t *source, int64_t n, struct question question, uint8_t *bits) {
    __m256 low = _mm256_set1_ps((float)question.low), high = _mm256_set1_ps((float)question.high);
    int64_t i = 0;
#define WIDE(i) _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(source + (i))))
#define EIGHT(i) _mm256_castsi256_ps(_mm256_slli_epi32(WIDE(i), 16))
    PACK_TESTS(MASK_PS)
#undef EIGHT
    return i;
}

WITH_AVX2 static int64_t pack_nonzero1(const uint8_t *source, int64_t n, uint8_t *bits) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i zero = _mm256_cmpeq_epi8(load256(source + i), _mm256_setzero_si256());
        uint32_t word = ~(uint32_t)_mm256_movemask_epi8(zero);
        memcpy(bits + i / 8, &word, sizeof word);
    }
    return i;
}

WITH_AVX2 static int64_t pack_nonzero2(const uint16_t *source, int64_t n, uint8_t *bits) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i zero = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *)(source + i)), _mm_setzero_si128());
        bits[i / 8] = (uint8_t)~_mm_movemask_epi8(_mm_packs_epi16(zero, zero));
    }
    return i;
}

WITH_AVX2 static int64_t pack_nonzero4(const uint32_t *source, int64_t n, uint8_t *bits) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i zero = _mm256_cmpeq_epi32(load256(source + i), _mm256_setzero_si256());
        bits[i / 8] = (uint8_t)~_mm256_movemask_ps(_mm256_castsi256_ps(zero));
    }
    return i;
}

WITH_AVX2_INLINE static int four_zeros(const uint64_t *source) {
    return _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(load256(source), _mm256_setzero_si256())));
}

WITH_AVX2 static int64_t pack_nonzero8(const uint64_t *source, int64_t n, uint8_t *bits) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) bits[i / 8] = (uint8_t)~(four_zeros(source + i) | four_zeros(source + i + 4) << 4);
    return i;
}

/* As many elements as fill vectors; how many that were is returned. */
static int64_t pack_whole(const void *source, int64_t n, struct question question, uint8_t *bits) {
    if (question.test == NONZERO) {
        switch (question.element_nbytes) {
        case 1: return pack_nonzero1(source, n, bits);
        case 2: return pack_nonzero2(source, n, bits);
        case 4: return pack_nonzero4(source, n, bits);
        default: return pack_nonzero8(source, n, bits);
        }
    }
    switch (question.element) {
    case FLOAT32: return pack_float32(source, n, question, bits);
    case FLOAT64: return pack_float64(source, n, question, bits);
    case FLOAT16: return pack_float16(source, n, question, bits);
    default: return pack_bfloat16(source, n, question, bits);
    }
}

static void pack_mask(const void *source, int64_t n, struct question question, uint8_t *bits) {
    int64_t done = pack_whole(source, n, question, bits);
    const uint8_t *rest = (const uint8_t *)source + done * question.element_nbytes;
    generic_inner()->pack_mask(rest, n - done, question, bits + done / 8);
}

WITH_AVX2 static int64_t unpack1(const uint8_t *bits, int64_t n, uint8_t on, uint8_t off, uint8_t *target) {
    const __m256i yes = _mm256_set1_epi8((char)on), no = _mm256_set1_epi8((char)off);
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        int32_t word;
        memcpy(&word, bits + i / 8, sizeof word);
        __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(word), byte);
        __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
        store256(target + i, _mm256_blendv_epi8(no, yes, set));
    }
    return i;
}

WITH_AVX2 static int64_t unpack2(const uint8_t *bits, int64_t n, uint16_t on, uint16_t off, uint16_t *target) {
    const __m256i yes = _mm256_set1_epi16((short)on), no = _mm256_set1_epi16((short)off);
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        int16_t word;
        memcpy(&word, bits + i / 8, sizeof word);
        __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(_mm256_set1_epi16(word), bit), bit);
        store256(target + i, _mm256_blendv_epi8(no, yes, set));
    }
    return i;
}

WITH_AVX2 static int64_t unpack4(const uint8_t *bits, int64_t n, uint32_t on, uint32_t off, uint32_t *target) {
    const __m256i yes = _mm256_set1_epi32((int)on), no = _mm256_set1_epi32((int)off);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) store256(target + i, _mm256_blendv_epi8(no, yes, lanes_of_byte(bits[i / 8])));
    return i;
}

WITH_AVX2 static int64_t unpack8(const uint8_t *bits, int64_t n, uint64_t on, uint64_t off, uint64_t *target) {
    const __m256i yes = _mm256_set1_epi64x((long long)on), no = _mm256_set1_epi64x((long long)off);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint8_t byte = bits[i / 8];
        store256(target + i, _mm256_blendv_epi8(no, yes, lanes_of_nibble(byte & 15)));
        store256(target + i + 4, _mm256_blendv_epi8(no, yes, lanes_of_nibble(byte >> 4)));
    }
    return i;
}

static int64_t unpack_whole(const uint8_t *bits, int64_t n, int element_nbytes, uint64_t on, uint64_t off,
                            void *target) {
    switch (element_nbytes) {
    case 1: return unpack1(bits, n, (uint8_t)on, (uint8_t)off, target);
    case 2: return unpack2(bits, n, (uint16_t)on, (uint16_t)off, target);
    case 4: return unpack4(bits, n, (uint32_t)on, (uint32_t)off, target);
    default: return unpack8(bits, n, on, off, target);
    }
}

static void unpack_mask(const uint8_t *bits, int64_t n, int element_nbytes, uint64_t on, uint64_t off, void *target) {
    int64_t done = unpack_whole(bits, n, element_nbytes, on, off, target);
    uint8_t *rest = (uint8_t *)target + done * element_nbytes;
    generic_inner()->unpack_mask(bits + done / 8, n - done, element_nbytes, on, off, rest);
}

/* The lanes whose bit is set get g * on, or g itself when on is one; the others likewise with off, or zero. All of it
 * is selection between vectors, so that one loop serves ReLU, leaky ReLU and dropout. */
WITH_AVX2 static void mask_gradient_f32(const float *gradient, const uint8_t *bits, int64_t n, struct factors factors,
                                        float *target) {
    const __m256 on = _mm256_set1_ps((float)factors.on), off = _mm256_set1_ps((float)factors.off);
    const __m256 one = _mm256_set1_ps(1), kept = _mm256_castsi256_ps(_mm256_set1_epi32(factors.zero_off ? 0 : -1));
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 set = _mm256_castsi256_ps(lanes_of_byte(bits[i / 8])), g = _mm256_loadu_ps(gradient + i);
        __m256 factor = _mm256_blendv_ps(off, on, set), is_one = _mm256_cmp_ps(factor, one, _CMP_EQ_OQ);
        __m256 product = _mm256_blendv_ps(_mm256_mul_ps(g, factor), g, is_one);
        _mm256_storeu_ps(target + i, _mm256_and_ps(product, _mm256_or_ps(set, kept)));
    }
    generic_inner()->mask_gradient_f32(gradient + i, bits + i / 8, n - i, factors, target + i);
}

WITH_AVX2_INLINE static __m256d masked_four(__m256d g, __m256d set, __m256d on, __m256d off, __m256d kept) {
    __m256d factor = _mm256_blendv_pd(off, on, set), is_one = _mm256_cmp_pd(factor, _mm256_set1_pd(1), _CMP_EQ_OQ);
    __m256d product = _mm256_blendv_pd(_mm256_mul_pd(g, factor), g, is_one);
    return _mm256_and_pd(product, _mm256_or_pd(set, kept));
}

WITH_AVX2 static void mask_gradient_f64(const double *gradient, const uint8_t *bits, int64_t n, struct factors factors,
                                        double *target) {
    const __m256d on = _mm256_set1_pd(factors.on), off = _mm256_set1_pd(factors.off);
    const __m256d kept = _mm256_castsi256_pd(_mm256_set1_epi64x(factors.zero_off ? 0 : -1));
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256d low = _mm256_castsi256_pd(lanes_of_nibble(bits[i / 8] & 15));
        __m256d high = _mm256_castsi256_pd(lanes_of_nibble(bits[i / 8] >> 4));
        _mm256_storeu_pd(target + i, masked_four(_mm256_loadu_pd(gradient + i), low, on, off, kept));
        _mm256_storeu_pd(target + i + 4, masked_four(_mm256_loadu_pd(gradient + i + 4), high, on, off, kept));
    }
    generic_inner()->mask_gradient_f64(gradient + i, bits + i / 8, n - i, factors, target + i);
}

void enter_masks_avx2(struct inner *table) {
    table->pack_mask = pack_mask;
    table->unpack_mask = unpack_mask;
    table->mask_gradient_f32 = mask_gradient_f32;
    table->mask_gradient_f64 = mask_gradient_f64;
}
#endif
