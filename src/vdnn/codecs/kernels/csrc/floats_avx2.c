/* Short floats with AVX2: eight patterns at a time in 32-bit lanes, then packed into the bytes they take. */
#include "kernels.h"

#ifdef VDNN_X86
#include "avx2.h"
#include "short_floats.h"

WITH_AVX2_INLINE static __m256i all(uint32_t x) { return _mm256_set1_epi32((int)x); }

/* pattern_of_bits in every lane. Signed comparisons are right: magnitudes have no sign bit, and a NaN, whose rounding
 * may carry into it, is replaced at the end. */
WITH_AVX2_INLINE static __m256i patterns_of(__m256i bits, const struct short_float layout) {
    const int shift = 23 - layout.mantissa_bits;
    __m256i magnitude = _mm256_and_si256(bits, all(0x7FFFFFFF));
    __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(bits, 31), layout.pattern_bits - 1);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, shift), all(1));
    __m256i half = _mm256_add_epi32(magnitude, all((1u << (shift - 1)) - 1));
    __m256i pattern = _mm256_sub_epi32(_mm256_srli_epi32(_mm256_add_epi32(half, odd), shift), all(layout.rebias));
    if (layout.smallest > 0) pattern = _mm256_and_si256(pattern, _mm256_cmpgt_epi32(pattern, all(layout.smallest - 1)));
    pattern = _mm256_min_epi32(pattern, all(layout.largest));
    pattern = _mm256_blendv_epi8(pattern, all(layout.nan), _mm256_cmpgt_epi32(magnitude, all(0x7F800000)));
    return _mm256_or_si256(pattern, sign);
}

/* bits_of_pattern in every lane. Bits above the pattern are shifted out with its sign. */
WITH_AVX2_INLINE static __m256i bits_of(__m256i pattern, const struct short_float layout) {
    __m256i magnitude = _mm256_and_si256(pattern, all((1u << (layout.pattern_bits - 1)) - 1));
    __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(pattern, layout.pattern_bits - 1), 31);
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(magnitude, all(layout.rebias)), 23 - layout.mantissa_bits);
    bits = _mm256_and_si256(bits, _mm256_cmpgt_epi32(magnitude, all(layout.smallest - 1)));
    bits = _mm256_blendv_epi8(bits, all(0x7FC00000), _mm256_cmpeq_epi32(magnitude, all(layout.nan)));
    return _mm256_or_si256(bits, sign);
}

/* Limits and NaN are settled in float32; the hardware's conversion rounds the rest to nearest even. */
WITH_AVX2 static void reduce_fp16(const float *source, int64_t n, uint8_t *target) {
    const __m256i largest = all(0x477FE000); /* 65504 */
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i bits = load256(source + i), magnitude = _mm256_and_si256(bits, all(0x7FFFFFFF));
        __m256i is_nan = _mm256_cmpgt_epi32(magnitude, all(0x7F800000));
        __m256i limited = _mm256_blendv_epi8(_mm256_min_epi32(magnitude, largest), all(0x7FC00000), is_nan);
        __m256i signed_bits = _mm256_or_si256(limited, _mm256_and_si256(bits, all(0x80000000)));
        __m128i halves = _mm256_cvtps_ph(_mm256_castsi256_ps(signed_bits), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(target + 2 * i), halves);
    }
    generic_inner()->reduce[FP16](source + i, n - i, target + 2 * i);
}

WITH_AVX2 static void expand_fp16(const uint8_t *source, int64_t n, float *target) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(source + 2 * i))));
    generic_inner()->expand[FP16](source + 2 * i, n - i, target + i);
}

/* The packing instructions work within 128-bit halves; the permutations put the quarters back into order. */
WITH_AVX2 static void reduce_bf16(const float *source, int64_t n, uint8_t *target) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i first = patterns_of(load256(source + i), BF16_LAYOUT);
        __m256i second = patterns_of(load256(source + i + 8), BF16_LAYOUT);
        store256(target + 2 * i, _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), _MM_SHUFFLE(3, 1, 2, 0)));
    }
    generic_inner()->reduce[BF16](source + i, n - i, target + 2 * i);
}

WITH_AVX2 static void expand_bf16(const uint8_t *source, int64_t n, float *target) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i patterns = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(source + 2 * i)));
        store256(target + i, _mm256_slli_epi32(patterns, 16));
    }
    generic_inner()->expand[BF16](source + 2 * i, n - i, target + i);
}

WITH_AVX2 static void reduce_fp8(const float *source, int64_t n, uint8_t *target) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i a = patterns_of(load256(source + i), FP8_LAYOUT), b = patterns_of(load256(source + i + 8), FP8_LAYOUT);
        __m256i c = patterns_of(load256(source + i + 16), FP8_LAYOUT);
        __m256i d = patterns_of(load256(source + i + 24), FP8_LAYOUT);
        __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
        store256(target + i, _mm256_permutevar8x32_epi32(bytes, order));
    }
    generic_inner()->reduce[FP8](source + i, n - i, target + i);
}

WITH_AVX2 static void expand_fp8(const uint8_t *source, int64_t n, float *target) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i patterns = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(source + i)));
        store256(target + i, bits_of(patterns, FP8_LAYOUT));
    }
    generic_inner()->expand[FP8](source + i, n - i, target + i);
}

/* Of 24 elements in three vectors a, b, c, the first ones of the eight words are elements 0, 3, ..., 21: lanes 0, 3, 6
 * of a, then 1, 4, 7 of b, then 2, 5 of c. No lane is used twice, so blends collect them and one permutation sorts
 * them. The second and third ones of the words differ only in which lanes. */
enum { LANES_036 = 0x49, LANES_147 = 0x92, LANES_25 = 0x24 };

#define COLLECT(a, b, c, of_b, of_c) _mm256_blend_epi32(_mm256_blend_epi32(a, b, of_b), c, of_c)

WITH_AVX2 static void reduce_fp10(const float *source, int64_t n, uint8_t *target) {
    const __m256i order0 = _mm256_setr_epi32(0, 3, 6, 1, 4, 7, 2, 5);
    const __m256i order1 = _mm256_setr_epi32(1, 4, 7, 2, 5, 0, 3, 6);
    const __m256i order2 = _mm256_setr_epi32(2, 5, 0, 3, 6, 1, 4, 7);
    int64_t i = 0;
    for (; i + 24 <= n; i += 24, target += 32) {
        __m256i a = patterns_of(load256(source + i), FP10_LAYOUT);
        __m256i b = patterns_of(load256(source + i + 8), FP10_LAYOUT);
        __m256i c = patterns_of(load256(source + i + 16), FP10_LAYOUT);
        __m256i first = _mm256_permutevar8x32_epi32(COLLECT(a, b, c, LANES_147, LANES_25), order0);
        __m256i second = _mm256_permutevar8x32_epi32(COLLECT(a, b, c, LANES_25, LANES_036), order1);
        __m256i third = _mm256_permutevar8x32_epi32(COLLECT(a, b, c, LANES_036, LANES_147), order2);
        second = _mm256_slli_epi32(second, 10), third = _mm256_slli_epi32(third, 20);
        store256(target, _mm256_or_si256(_mm256_or_si256(first, second), third));
    }
    generic_inner()->reduce[FP10](source + i, n - i, target);
}

/* Element k is in word k / 3, shifted by 10 * (k % 3): a permutation repeats the words, a variable shift aligns. */
WITH_AVX2 static void expand_fp10(const uint8_t *source, int64_t n, float *target) {
    const __m256i word_a = _mm256_setr_epi32(0, 0, 0, 1, 1, 1, 2, 2);
    const __m256i word_b = _mm256_setr_epi32(2, 3, 3, 3, 4, 4, 4, 5);
    const __m256i word_c = _mm256_setr_epi32(5, 5, 6, 6, 6, 7, 7, 7);
    const __m256i by_a = _mm256_setr_epi32(0, 10, 20, 0, 10, 20, 0, 10);
    const __m256i by_b = _mm256_setr_epi32(20, 0, 10, 20, 0, 10, 20, 0);
    const __m256i by_c = _mm256_setr_epi32(10, 20, 0, 10, 20, 0, 10, 20);
    int64_t i = 0;
    for (; i + 24 <= n; i += 24, source += 32) {
        __m256i words = load256(source);
        __m256i a = _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(words, word_a), by_a);
        __m256i b = _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(words, word_b), by_b);
        __m256i c = _mm256_srlv_epi32(_mm256_permutevar8x32_epi32(words, word_c), by_c);
        store256(target + i, bits_of(a, FP10_LAYOUT));
        store256(target + i + 8, bits_of(b, FP10_LAYOUT));
        store256(target + i + 16, bits_of(c, FP10_LAYOUT));
    }
    generic_inner()->expand[FP10](source, n - i, target + i);
}

void enter_floats_avx2(struct inner *table) {
    table->reduce[FP16] = reduce_fp16, table->expand[FP16] = expand_fp16;
    table->reduce[BF16] = reduce_bf16, table->expand[BF16] = expand_bf16;
    table->reduce[FP10] = reduce_fp10, table->expand[FP10] = expand_fp10;
    table->reduce[FP8] = reduce_fp8, table->expand[FP8] = expand_fp8;
}
#endif
