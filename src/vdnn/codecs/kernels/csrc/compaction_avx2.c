/* Packing and spreading with AVX2, which has no such instruction: a table turns a byte of the mask into a shuffle. */
#include "kernels.h"

#ifdef VDNN_X86
#include "avx2.h"
#include "bit_loops.h"

WITH_AVX2_INLINE static __m256i lanes(uint64_t bytes) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
}

/* Eight numbers of elements as the sixteen byte numbers that shuffle two-byte elements: 2k, 2k + 1. */
WITH_AVX2_INLINE static __m128i byte_pairs(uint64_t bytes) {
    __m128i twice = _mm_slli_epi16(_mm_cvtsi64_si128((long long)bytes), 1);
    return _mm_add_epi8(_mm_unpacklo_epi8(twice, twice), _mm_set1_epi16(0x0100));
}

WITH_AVX2 static int64_t compact4(const uint32_t *source, const uint8_t *bits, int64_t n, uint32_t *target) {
    int64_t i = 0, count = 0;
    for (; i + 8 <= n; i += 8) {
        uint8_t byte = bits[i / 8];
        store256(target + count, _mm256_permutevar8x32_epi32(load256(source + i), lanes(PLACES[byte])));
        count += _mm_popcnt_u32(byte);
    }
    return count + generic_inner()->compact4(source + i, bits + i / 8, n - i, target + count);
}

WITH_AVX2 static int64_t compact2(const uint16_t *source, const uint8_t *bits, int64_t n, uint16_t *target) {
    int64_t i = 0, count = 0;
    for (; i + 8 <= n; i += 8) {
        uint8_t byte = bits[i / 8];
        __m128i elements = _mm_loadu_si128((const __m128i *)(source + i));
        _mm_storeu_si128((__m128i *)(target + count), _mm_shuffle_epi8(elements, byte_pairs(PLACES[byte])));
        count += _mm_popcnt_u32(byte);
    }
    return count + generic_inner()->compact2(source + i, bits + i / 8, n - i, target + count);
}

/* A whole vector of values is read for each byte of the mask, so this stops eight values before the end. */
WITH_AVX2 static void scatter4(const uint32_t *values, const uint32_t *values_end, const uint8_t *bits, int64_t n,
                               uint32_t *target) {
    int64_t i = 0;
    for (; i + 8 <= n && values_end - values >= 8; i += 8) {
        uint8_t byte = bits[i / 8];
        __m256i spread = _mm256_permutevar8x32_epi32(load256(values), lanes(RANKS[byte]));
        store256(target + i, _mm256_and_si256(spread, lanes_of_byte(byte)));
        values += _mm_popcnt_u32(byte);
    }
    generic_inner()->scatter4(values, values_end, bits + i / 8, n - i, target + i);
}

WITH_AVX2 static void scatter2(const uint16_t *values, const uint16_t *values_end, const uint8_t *bits, int64_t n,
                               uint16_t *target) {
    const __m128i bit = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128);
    int64_t i = 0;
    for (; i + 8 <= n && values_end - values >= 8; i += 8) {
        uint8_t byte = bits[i / 8];
        __m128i spread = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)values), byte_pairs(RANKS[byte]));
        __m128i set = _mm_cmpeq_epi16(_mm_and_si128(_mm_set1_epi16(byte), bit), bit);
        _mm_storeu_si128((__m128i *)(target + i), _mm_and_si128(spread, set));
        values += _mm_popcnt_u32(byte);
    }
    generic_inner()->scatter2(values, values_end, bits + i / 8, n - i, target + i);
}

/* The same loops as everywhere; what they gain here is the instruction that counts bits. */
WITH_AVX2 static int64_t count_bits(const uint8_t *bits, int64_t nbytes) { return count_bits_loop(bits, nbytes); }
WITH_AVX2 static int64_t columns(const uint8_t *bits, int64_t n, uint8_t *target) {
    return columns_loop(bits, n, target);
}

void enter_compaction_avx2(struct inner *table) {
    table->compact4 = compact4;
    table->compact2 = compact2;
    table->scatter4 = scatter4;
    table->scatter2 = scatter2;
    table->count_bits = count_bits;
    table->columns = columns;
}
#endif
