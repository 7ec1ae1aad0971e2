/* Two tables that turn a byte of a mask into the shuffle that packs or spreads eight elements.
 *
 * PLACES[m] has, in its byte k, the position of the k-th set bit of m. RANKS[m] has, in its byte i, the number of set
 * bits of m below bit i. BMI2's pext and pdep compute the same, but take dozens of cycles on AMD before Zen 3; 4 KiB of
 * tables stay in the first-level cache everywhere.
 */
#include "kernels.h"

#define RANK(m, i) ((uint64_t)__builtin_popcount((m) & ((1 << (i)) - 1)))
#define PLACE(m, i) (((m) >> (i)) & 1 ? (uint64_t)(i) << (8 * RANK(m, i)) : 0)
#define AT(m, i) (RANK(m, i) << (8 * (i)))

#define PLACES_OF(m)                                                                                                   \
    (PLACE(m, 0) | PLACE(m, 1) | PLACE(m, 2) | PLACE(m, 3) | PLACE(m, 4) | PLACE(m, 5) | PLACE(m, 6) | PLACE(m, 7))
#define RANKS_OF(m) (AT(m, 0) | AT(m, 1) | AT(m, 2) | AT(m, 3) | AT(m, 4) | AT(m, 5) | AT(m, 6) | AT(m, 7))

#define FOUR(f, m) f(m), f((m) + 1), f((m) + 2), f((m) + 3)
#define SIXTEEN(f, m) FOUR(f, m), FOUR(f, (m) + 4), FOUR(f, (m) + 8), FOUR(f, (m) + 12)
#define SIXTY_FOUR(f, m) SIXTEEN(f, m), SIXTEEN(f, (m) + 16), SIXTEEN(f, (m) + 32), SIXTEEN(f, (m) + 48)
#define ALL(f) SIXTY_FOUR(f, 0), SIXTY_FOUR(f, 64), SIXTY_FOUR(f, 128), SIXTY_FOUR(f, 192)

const uint64_t PLACES[256] = {ALL(PLACES_OF)};
const uint64_t RANKS[256] = {ALL(RANKS_OF)};
