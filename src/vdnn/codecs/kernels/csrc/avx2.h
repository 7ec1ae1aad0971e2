/* What the AVX2 files share. Each function carries the instruction sets it needs, so that one build runs everywhere. */
#ifndef VDNN_AVX2_H
#define VDNN_AVX2_H

#include <immintrin.h>

#define WITH_AVX2 __attribute__((target("avx2,f16c,popcnt")))
#define WITH_AVX2_INLINE WITH_AVX2 __attribute__((always_inline)) inline

WITH_AVX2_INLINE static __m256i load256(const void *address) { return _mm256_loadu_si256((const __m256i *)address); }
WITH_AVX2_INLINE static void store256(void *address, __m256i x) { _mm256_storeu_si256((__m256i *)address, x); }

/* A byte of a mask as eight lanes, all ones where its bit is set. */
WITH_AVX2_INLINE static __m256i lanes_of_byte(uint8_t byte) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(byte), bit), bit);
}

/* Four bits of a mask as four lanes of eight bytes. */
WITH_AVX2_INLINE static __m256i lanes_of_nibble(uint8_t nibble) {
    const __m256i bit = _mm256_setr_epi64x(1, 2, 4, 8);
    return _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(nibble), bit), bit);
}

#endif
