/* Packing and spreading with AVX-512, which has an instruction for each: sixteen elements at a time. */
#include "kernels.h"

#ifdef VDNN_X86
#include <immintrin.h>
#include <string.h>

#define WITH_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,popcnt")))

static inline uint16_t sixteen_bits(const uint8_t *bits) {
    uint16_t word;
    memcpy(&word, bits, sizeof word);
    return word;
}

/* Compresses in a register and stores all of it: the form that compresses into memory is microcoded on AMD's Zen 4. */
WITH_AVX512 static int64_t compact4(const uint32_t *source, const uint8_t *bits, int64_t n, uint32_t *target) {
    int64_t i = 0, count = 0;
    for (; i + 16 <= n; i += 16) {
        uint16_t word = sixteen_bits(bits + i / 8);
        _mm512_storeu_si512(target + count, _mm512_maskz_compress_epi32(word, _mm512_loadu_si512(source + i)));
        count += _mm_popcnt_u32(word);
    }
    return count + generic_inner()->compact4(source + i, bits + i / 8, n - i, target + count);
}

/* The expanding load reads exactly as many values as bits are set, so the end needs no care. */
WITH_AVX512 static void scatter4(const uint32_t *values, const uint32_t *values_end, const uint8_t *bits, int64_t n,
                                 uint32_t *target) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint16_t word = sixteen_bits(bits + i / 8);
        _mm512_storeu_si512(target + i, _mm512_maskz_expandloadu_epi32(word, values));
        values += _mm_popcnt_u32(word);
    }
    generic_inner()->scatter4(values, values_end, bits + i / 8, n - i, target + i);
}

void enter_compaction_avx512(struct inner *table) {
    table->compact4 = compact4;
    table->scatter4 = scatter4;
}
#endif
