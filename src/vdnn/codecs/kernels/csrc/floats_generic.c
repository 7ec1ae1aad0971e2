/* Short floats in plain C: the loops for other CPUs, and for the last few elements of the vector levels. */
#include "halves.h"
#include "kernels.h"
#include "short_floats.h"

static void put16(uint8_t *target, int64_t i, uint32_t pattern) {
    uint16_t narrow = (uint16_t)pattern;
    memcpy(target + 2 * i, &narrow, sizeof narrow);
}

static uint32_t get16(const uint8_t *source, int64_t i) {
    uint16_t narrow;
    memcpy(&narrow, source + 2 * i, sizeof narrow);
    return narrow;
}

static void reduce_fp16(const float *source, int64_t n, uint8_t *target) {
    for (int64_t i = 0; i < n; i++) put16(target, i, half_of_bits(bits_of_float(source[i])));
}

static void expand_fp16(const uint8_t *source, int64_t n, float *target) {
    for (int64_t i = 0; i < n; i++) target[i] = float_of_half(get16(source, i));
}

static void reduce_bf16(const float *source, int64_t n, uint8_t *target) {
    for (int64_t i = 0; i < n; i++) put16(target, i, pattern_of_bits(bits_of_float(source[i]), BF16_LAYOUT));
}

static void expand_bf16(const uint8_t *source, int64_t n, float *target) {
    for (int64_t i = 0; i < n; i++) target[i] = float_of_bits(get16(source, i) << 16);
}

static void reduce_fp8(const float *source, int64_t n, uint8_t *target) {
    for (int64_t i = 0; i < n; i++) target[i] = (uint8_t)pattern_of_bits(bits_of_float(source[i]), FP8_LAYOUT);
}

static void expand_fp8(const uint8_t *source, int64_t n, float *target) {
    for (int64_t i = 0; i < n; i++) target[i] = float_of_bits(bits_of_pattern(source[i], FP8_LAYOUT));
}

/* Three to a word, the last word filled with zeros. */
static void reduce_fp10(const float *source, int64_t n, uint8_t *target) {
    for (int64_t first = 0; first < n; first += 3, target += 4) {
        uint32_t word = 0;
        for (int64_t i = first, end = smaller(first + 3, n); i < end; i++)
            word |= pattern_of_bits(bits_of_float(source[i]), FP10_LAYOUT) << (10 * (i - first));
        memcpy(target, &word, sizeof word);
    }
}

static void expand_fp10(const uint8_t *source, int64_t n, float *target) {
    for (int64_t first = 0; first < n; first += 3, source += 4) {
        uint32_t word;
        memcpy(&word, source, sizeof word);
        for (int64_t i = first, end = smaller(first + 3, n); i < end; i++)
            target[i] = float_of_bits(bits_of_pattern(word >> (10 * (i - first)) & 0x3FF, FP10_LAYOUT));
    }
}

void enter_floats_generic(struct inner *table) {
    table->reduce[FP16] = reduce_fp16, table->expand[FP16] = expand_fp16;
    table->reduce[BF16] = reduce_bf16, table->expand[BF16] = expand_bf16;
    table->reduce[FP10] = reduce_fp10, table->expand[FP10] = expand_fp10;
    table->reduce[FP8] = reduce_fp8, table->expand[FP8] = expand_fp8;
}
