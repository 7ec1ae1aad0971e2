/* Loops over the bytes of a mask that only need the compiler to know how bits are counted on the CPU at hand. */
#ifndef VDNN_BIT_LOOPS_H
#define VDNN_BIT_LOOPS_H

#include "kernels.h"

#include <string.h>

__attribute__((always_inline)) static inline int64_t count_bits_loop(const uint8_t *bits, int64_t nbytes) {
    int64_t count = 0, i = 0;
    for (; i + 8 <= nbytes; i += 8) {
        uint64_t word;
        memcpy(&word, bits + i, sizeof word);
        count += __builtin_popcountll(word);
    }
    for (; i < nbytes; i++) count += __builtin_popcount(bits[i]);
    return count;
}

/* Eight places at a time, in the bytes of one integer; a row's positions fit a byte, so adding the byte's own position
 * to all eight never carries. Past the set bits there is rubbish, which the next eight overwrite: hence the slack. */
__attribute__((always_inline)) static inline int64_t columns_loop(const uint8_t *bits, int64_t n, uint8_t *target) {
    int64_t count = 0, nbytes = ceil_div(n, 8);
    for (int64_t byte = 0; byte < nbytes; byte++) {
        uint64_t places = PLACES[bits[byte]] + (uint64_t)(8 * byte % ROW) * 0x0101010101010101;
        memcpy(target + count, &places, sizeof places);
        count += __builtin_popcount(bits[byte]);
    }
    return count;
}

#endif
