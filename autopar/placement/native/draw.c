/* Matsumoto and Nishimura, "Mersenne Twister", ACM Transactions on Modeling and Computer Simulation 8(1), 1998. */

#include "network.h"

static uint32_t word(Draw *draw)
{
    uint32_t *mt = draw->word;
    if (draw->next >= 624) {
        for (int k = 0; k < 624; k++) {
            uint32_t y = (mt[k] & 0x80000000u) | (mt[k < 623 ? k + 1 : 0] & 0x7fffffffu);
            mt[k] = mt[k < 227 ? k + 397 : k - 227] ^ (y >> 1) ^ (-(y & 1) & 0x9908b0dfu);
        }
        draw->next = 0;
    }
    uint32_t y = mt[draw->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

double drawn(Draw *draw)
{
    uint32_t high = word(draw) >> 5, low = word(draw) >> 6;
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}
