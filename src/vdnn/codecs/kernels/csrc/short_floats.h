/* The formats whose rounding is integer arithmetic on float32's bits; the table is in ../formats.py. */
#ifndef VDNN_SHORT_FLOATS_H
#define VDNN_SHORT_FLOATS_H

#include <stdint.h>

struct short_float {
    int mantissa_bits, pattern_bits;
    uint32_t rebias;   /* float32's bias minus the format's, in units of the format's exponent field */
    uint32_t smallest; /* pattern of the smallest normal number, below which is zero; 0 where subnormals exist */
    uint32_t largest, nan;
};

#define BF16_LAYOUT ((struct short_float){7, 16, 0, 0, 0x7F7F, 0x7FC0})
#define FP10_LAYOUT ((struct short_float){4, 10, 112u << 4, 1u << 4, 0x1FE, 0x1FF})
#define FP8_LAYOUT ((struct short_float){3, 8, 120u << 3, 1u << 3, 0x7E, 0x7F})

/* Add half of the last place that stays, less one if that place is even; shift; move the exponent; limit. */
static inline uint32_t pattern_of_bits(uint32_t bits, struct short_float layout) {
    int shift = 23 - layout.mantissa_bits;
    uint32_t magnitude = bits & 0x7FFFFFFF, sign = bits >> 31 << (layout.pattern_bits - 1);
    uint32_t rounded = (magnitude + (1u << (shift - 1)) - 1 + (magnitude >> shift & 1)) >> shift;
    uint32_t pattern = rounded < layout.rebias + layout.smallest ? 0 : rounded - layout.rebias;
    pattern = pattern > layout.largest ? layout.largest : pattern;
    return sign | (magnitude > 0x7F800000 ? layout.nan : pattern);
}

/* Not for bf16, whose patterns are the upper half of a float32. */
static inline uint32_t bits_of_pattern(uint32_t pattern, struct short_float layout) {
    uint32_t magnitude = pattern & ((1u << (layout.pattern_bits - 1)) - 1);
    uint32_t sign = pattern >> (layout.pattern_bits - 1) << 31;
    uint32_t bits = (magnitude + layout.rebias) << (23 - layout.mantissa_bits);
    bits = magnitude < layout.smallest ? 0 : bits;
    return sign | (magnitude == layout.nan ? 0x7FC00000 : bits);
}

#endif
