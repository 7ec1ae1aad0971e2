/* One value at a time: float32 and its bits, and IEEE half, as the hardware's own conversions do it. */
#ifndef VDNN_HALVES_H
#define VDNN_HALVES_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* A NaN becomes quiet and keeps its payload. A subnormal half is its pattern times 2**-24, exactly. */
static inline uint32_t bits_of_half(uint32_t pattern) {
    uint32_t sign = (pattern & 0x8000) << 16, magnitude = pattern & 0x7FFF;
    if (magnitude > 0x7C00) return sign | 0x7FC00000 | magnitude << 13;
    if (magnitude == 0x7C00) return sign | 0x7F800000;
    if (magnitude < 0x0400) return sign | bits_of_float((float)magnitude * 0x1p-24f);
    return sign | ((magnitude << 13) + (112u << 23));
}

static inline float float_of_half(uint32_t pattern) { return float_of_bits(bits_of_half(pattern)); }

/* To nearest even, clamped to the largest finite half, NaN canonical: see ../formats.py. Below the smallest normal half
 * the float unit does the rounding: 0.5 has its last place where a subnormal half has its own. */
static inline uint32_t half_of_bits(uint32_t bits) {
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return sign | 0x7E00;
    if (magnitude < 0x38800000) return sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3F000000);
    uint32_t pattern = ((magnitude + 0xFFF + (magnitude >> 13 & 1)) >> 13) - (112u << 10);
    return sign | (pattern > 0x7BFF ? 0x7BFF : pattern);
}

#endif
