/* Window taps between memory, where two share a byte if 16 are enough, and a buffer of one byte each. */
#ifndef VDNN_WINDOW_TAPS_H
#define VDNN_WINDOW_TAPS_H

#include "geometry.h"

#include <string.h>

/* Writes n taps from element `first` on, which is even. A last half byte stays zero. */
static inline void write_taps(const struct geometry *g, uint8_t *taps, int64_t first, int64_t n, uint8_t *target) {
    if (g->num_taps > 16) {
        memcpy(target + first, taps, (size_t)n);
        return;
    }
    target += first / 2;
    for (int64_t i = 0; i < n / 2; i++) target[i] = (uint8_t)(taps[2 * i] | taps[2 * i + 1] << 4);
    if (n % 2) target[n / 2] = taps[n - 1];
}

/* Reads n taps from element `first` on and returns the largest of them. */
static inline int read_taps(const struct geometry *g, const uint8_t *source, int64_t first, int64_t n,
                            uint8_t *taps) {
    uint8_t largest = 0;
    if (g->num_taps > 16) {
        memcpy(taps, source + first, (size_t)n);
    } else {
        int64_t i = 0;
        if (first % 2 && n > 0) taps[i++] = source[first / 2] >> 4;
        const uint8_t *pairs = source + (first + i) / 2;
        for (int64_t k = 0; k < (n - i) / 2; k++) {
            taps[i + 2 * k] = pairs[k] & 15;
            taps[i + 2 * k + 1] = pairs[k] >> 4;
        }
        if ((n - i) % 2) taps[n - 1] = pairs[(n - i) / 2] & 15;
    }
    for (int64_t i = 0; i < n; i++) largest = taps[i] > largest ? taps[i] : largest;
    return largest;
}

#endif
