/* The search's data, as network.py, timed.py and neighbours.py describe it. Arrays of several dimensions are flat, the
   last index running fastest. */

#ifndef AUTOPAR_NETWORK_H
#define AUTOPAR_NETWORK_H

#include <math.h>
#include <stdint.h>

#define NEAR 1e-9 /* timed.NEAR */
#define NOT_THERE -1.0
#define TASTES 4   /* as many as rebuilding.AHEAD and STAY have */

/* Those of i are of[at[i]] to of[at[i + 1] - 1]. */
typedef struct {
    const int *at, *of;
} Lists;

#define EACH(name, lists, i) \
    for (const int *name = (lists).of + (lists).at[i], *name##_end = (lists).of + (lists).at[(i) + 1]; \
         name < name##_end; name++)
#define COUNT(lists, i) ((lists).at[(i) + 1] - (lists).at[i])

static inline double most(double a, double b)
{
    return b > a ? b : a;
}

static inline double least(double a, double b)
{
    return b < a ? b : a;
}

/* R runs on D devices with W wires and copy queues and V values; `makes` and `later` have those of R too. */
typedef struct {
    int runs, devices, wires, values, groups;
    const int *lane_at;             /* [D + 1] */
    const double *seconds, *to_go;  /* [R][D] */
    const double *bytes;            /* [V] */
    const double *latency, *s_per_byte; /* [D][D] */
    const int *hop_at;              /* [D][D] + 1 */
    const int *hop_wire, *hop_queue, *hop_stop;
    const double *hop_latency, *hop_s_per_byte;
    Lists makes, readers, deliver, reads, sooner, later, near, before, after, allowed, members;
    const int *waits, *maker, *home, *repeatable; /* [R], [V], [V], [R] */
} Network;

/* Seconds that a value takes from one device to another, with wires that nobody else takes. */
static inline double travel(const Network *net, int value, int source, int target)
{
    int way = source * net->devices + target;
    return net->latency[way] + net->bytes[value] * net->s_per_byte[way];
}

/* What a search may change, and how often: the constants of chain.py, neighbours.py and rebuilding.py. */
typedef struct {
    int moves, shifts, exchanges, groups, ruins, tried, estimate, looks, close, gathered, copies, most;
    double early, critical, beside, part, fewer, swapped, elsewhere, onward, enough;
    double ahead[TASTES], stay[TASTES];
} Ways;

typedef struct {
    int run, value, source, stop, wire, queue;
    double takes, came, tail;
} Sent;

/* Numbers up to R - 1 are runs, R stands for what no run makes, and those of `copies` follow, number R + 1 + i being of
   run `of[i]`. `copied` [R + 1] says of which there are any, and `copy_at` [R][D] has their numbers, 0 for none. */
typedef struct {
    int copies, *of, *copy_at;
    char *copied;
    int *device, *lane, *ended, eager, endings, sendings;
    double *keys, *ready, *start, *end, *tail, *wanted, makespan;
    double *there;     /* [V][D], NOT_THERE where a value does not come */
    char *shared;      /* [V], whether it is known where a value is, as of those that several runs read */
    Sent *sent;        /* [V * D] */
} Timed;

typedef struct {
    double at;
    int id;
} Event;

static inline int run_of(const Network *net, const Timed *timed, int number)
{
    return number < net->runs ? number : timed->of[number - net->runs - 1];
}

/* The number of the copy of a run on a device, 0 for none. */
static inline int copy_on(const Network *net, const Timed *timed, int run, int device)
{
    return timed->copied[run] ? timed->copy_at[run * net->devices + device] : 0;
}

/* A run, and then its copies. */
#define EACH_OF(number, net, timed, run) \
    for (int number##_d = -1, number = (run); number##_d < ((timed)->copied[run] ? (net)->devices : 0); \
         number = ++number##_d < (net)->devices ? (timed)->copy_at[(run) * (net)->devices + number##_d] : 0) \
        if (number##_d < 0 || number)

/* Room for one list to be timed in, and to follow it back. */
typedef struct {
    int *missing, *able, *queue, *queue_at, *at, *idle, *idles, *pools;
    double *begun, *lane_free, *busy, *onward;
    char *touched;
    Event *events, *pool;
} Bench;

#define WORDS 624

/* Mersenne Twister, as Python's random.Random. */
typedef struct {
    uint32_t word[WORDS];
    uint32_t next;
} Draw;

void twist(Draw *draw);

static inline uint32_t a_word(Draw *draw)
{
    if (draw->next >= WORDS)
        twist(draw);
    uint32_t y = draw->word[draw->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

static inline double drawn(Draw *draw)
{
    uint32_t high = a_word(draw) >> 5, low = a_word(draw) >> 6;
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

static inline int below(Draw *draw, int count)
{
    return (int)(drawn(draw) * count);
}

void play(const Network *net, Timed *timed, Bench *bench, const int *order, double limit, const double *after);
void tails(const Network *net, Timed *timed, Bench *bench);
void reach(const Network *net, const Timed *now, int run, int device, double *ready, double *after);

/* The schedule at hand and its neighbours. */
typedef struct {
    const Network *net;
    const Ways *ways;
    Draw *draw;
    Timed *now;
    double *keys;
    int *order;        /* runs and copies by their keys */
    int *critical, criticals;
    double *reached;   /* [R][D][2], below 0 where not known */
    int *queue_at, *queue;
    double *queue_keys, *queue_ends, *queue_tails;
    char *mark;        /* [R], all 0 between calls */
    int *edge, *found; /* [R] */
} Beside;

typedef struct {
    int count, run[2], device[2];
    double key[2], length;
} Change;

void stand(Beside *beside, Timed *now, Bench *bench, const int *order);
int a_run(Beside *beside);
double inside(Beside *beside, double low, double high);
int moved(Beside *beside, int run, double limit, Change *change);
int shifted(Beside *beside, int run, double limit, Change *change);
int exchanged(Beside *beside, int run, double limit, Change *change);
int gathered(Beside *beside, int run, int *device);
int stretched(Beside *beside, int run, int *device);
void still(const Beside *beside, const Timed *next, double *after);

/* Room for runs to be placed anew in. */
typedef struct {
    double *end, *lane_free, *busy, *there; /* there: [V][D] */
    char *known;                            /* [V], whether it has been looked up where a value is */
    char *free, *old;                       /* [R] */
    Sent *sent;                             /* as many as any run reads */
} Anew;

void look_up(const Network *net, Timed *timed);
void tidy(const Network *net, Timed *timed);
int recopied(Beside *beside, Timed *next);
int rebuilt(Beside *beside, Anew *anew, int run, double heat, int *device, int *places);

#endif
