/* Window codes between memory, where two share a byte if 16 are enough, and a buffer of one byte each. */
#ifndef VDNN_WINDOW_CODES_H
#define VDNN_WINDOW_CODES_H

#include "geometry.h"

#include <string.h>

/* Writes n codes from element `first` on, which is even. A last half byte stays zero. */
static inline void write_codes(const struct geometry *g, uint8_t *codes, int64_t first, int64_t n, uint8_t *target) {
    if (g->num_codes > 16) {
        memcpy(target + first, codes, (size_t)n);
        return;
    }
    target += first / 2;
    for (int64_t i = 0; i < n / 2; i++) target[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    if (n % 2) target[n / 2] = codes[n - 1];
}

/* Reads n codes from element `first` on and returns the largest of them. */
static inline int read_codes(const struct geometry *g, const uint8_t *source, int64_t first, int64_t n,
                             uint8_t *codes) {
    uint8_t largest = 0;
    if (g->num_codes > 16) {
        memcpy(codes, source + first, (size_t)n);
    } else {
        int64_t i = 0;
        if (first % 2 && n > 0) codes[i++] = source[first / 2] >> 4;
        const uint8_t *pairs = source + (first + i) / 2;
        for (int64_t k = 0; k < (n - i) / 2; k++) {
            codes[i + 2 * k] = pairs[k] & 15;
            codes[i + 2 * k + 1] = pairs[k] >> 4;
        }
        if ((n - i) % 2) codes[n - 1] = pairs[(n - i) / 2] & 15;
    }
    for (int64_t i = 0; i < n; i++) largest = codes[i] > largest ? codes[i] : largest;
    return largest;
}

#endif
