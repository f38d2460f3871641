/* The data of the search. Arrays of several dimensions are flat, the last index running fastest; times are seconds, inf
   where there is no way. search/core.py fills in what comes from Python. */

#ifndef AUTOPAR_NETWORK_H
#define AUTOPAR_NETWORK_H

#include <math.h>
#include <stdint.h>

#define NEAR 1e-9 /* share of the makespan below which a delay counts as none */
#define NOT_THERE -1.0

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

/* R clusters on D devices with W wires and copy queues and V values; W stands for no wire and for no queue. `makes` has the
   values of each cluster and, for R, of what is there before the call; `later` those that wait for a cluster without reading
   from it, `sooner` those that it so waits for, and `waits` how many values and clusters that is in all. `near` are all clusters
   beside one. `to_go` are the seconds from the end of a cluster on a device to the end of the graph, at best. `members` are
   clusters that must be on one device; `repeatable` ones may be computed on several, `most_copies` in a list at most.

   Of memory, in bytes, where it is `capped`: `room` of each device, `keeps` the storages of which a cluster needs a copy where
   it is, `stored` what that takes there, the `size` of each value, and `scratch` of each cluster while it lasts. Copies of a
   value that `stays` are never given up; what is there before the call is `given_up` after its last use, or never. */
typedef struct {
    int clusters, devices, wires, values, groups, most_copies, storages, capped, given_up;
    const int *lane_at;             /* [D + 1] */
    const double *seconds, *to_go;  /* [R][D] */
    const double *bytes;            /* [V] */
    const double *latency, *s_per_byte; /* [D][D] */
    const int *hop_at;              /* [D][D] + 1 */
    const int *hop_wire, *hop_queue, *hop_stop;
    const double *hop_latency, *hop_s_per_byte;
    Lists makes, readers, deliver, reads, sooner, later, near, before, after, allowed, members, keeps;
    const int *waits, *maker, *home, *repeatable, *stays; /* [R], [V], [V], [R], [V] */
    const double *room, *stored, *size, *scratch; /* [D], [S][D], [V], [R] */
} Network;

/* What times a list again: `device` and `keys` are [R + 1 + most_copies], `of` is [most_copies]. `over` are bytes above the caps. */
typedef struct {
    int *device, eager, copies, *of;
    double *keys, makespan, over;
} List;

/* Seconds that a value takes from one device to another, with wires that nobody else takes. */
static inline double travel(const Network *net, int value, int source, int target)
{
    int way = source * net->devices + target;
    return net->latency[way] + net->bytes[value] * net->s_per_byte[way];
}

/* A transfer of a value that a cluster makes (R: none), its seconds, when it goes and is there, and what follows that. */
typedef struct {
    int cluster, value, source, stop, wire, queue;
    double takes, went, came, tail;
} Sent;

/* A list with its times: each device starts its clusters in the order of their `keys`, as early as it can, also where it has
   several lanes; or, if `eager`, whatever it can start, the least key first. `ready` is when all that a cluster waits for is
   there; `ended` has the `endings` clusters by end, `sent` the transfers in the order in which they were asked for. `tail` are
   the seconds from the end of a cluster to the end of all along what waits for it here, `wanted` the same without what is
   behind it on its lane. `makespan` is inf where no way leads, clusters wait for each other, or the list was given up; `over` are
   the bytes above the caps, all devices together.

   Numbers up to R - 1 are clusters, R stands for what no cluster makes, and those of `copies` follow, number R + 1 + i being of
   cluster `of[i]`. `copied` [R + 1] says of which there are any, and `copy_at` [R][D] has their numbers, 0 for none. A copy
   serves what reads from its cluster on its device, other copies too, and the cluster itself whatever has no copy where it is: so
   a result is never moved to where it is computed. */
typedef struct {
    int copies, *of, *copy_at;
    char *copied;
    int *device, *lane, *ended, eager, endings, sendings;
    double *keys, *ready, *start, *end, *tail, *wanted, makespan, over;
    double *there;     /* [V][D], NOT_THERE where a value does not come */
    char *shared;      /* [V], whether it is known where a value is, as of those that several clusters read */
    Sent *sent;        /* [V * D] */
} Timed;

typedef struct {
    double at;
    int id;
} Event;

typedef struct {
    double at, bytes;
} Level;

static inline int run_of(const Network *net, const Timed *timed, int number)
{
    return number < net->clusters ? number : timed->of[number - net->clusters - 1];
}

/* The number of the copy of a cluster on a device, 0 for none. */
static inline int copy_on(const Network *net, const Timed *timed, int cluster, int device)
{
    return timed->copied[cluster] ? timed->copy_at[cluster * net->devices + device] : 0;
}

/* The numbers of all clusters, and then of all copies. */
#define EACH_NUMBER(number, net, timed) \
    for (int number = 0; number <= (net)->clusters + (timed)->copies; number++) \
        if (number != (net)->clusters)

/* A cluster, and then its copies. */
#define EACH_OF(number, net, timed, cluster) \
    for (int number##_d = -1, number = (cluster); number##_d < ((timed)->copied[cluster] ? (net)->devices : 0); \
         number = ++number##_d < (net)->devices ? (timed)->copy_at[(cluster) * (net)->devices + number##_d] : 0) \
        if (number##_d < 0 || number)

/* Room for one list to be timed in, and to follow it back. */
typedef struct {
    int *missing, *able, *queue, *queue_at, *at, *idle, *idles, *pools;
    double *begun, *lane_free, *busy, *onward;
    double *since, *until; /* [V][D] */
    char *touched, *stored;
    Event *events, *pool;
    Level *levels;
} Bench;

/* Random numbers: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. */
typedef uint64_t Draw;

static inline double drawn(Draw *draw)
{
    uint64_t z = *draw += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return ((z ^ (z >> 31)) >> 11) * (1.0 / 9007199254740992.0);
}

static inline int below(Draw *draw, int count)
{
    return (int)(drawn(draw) * count);
}

/* Time a list; `order` has its clusters and copies by their keys, unless it is eager. Second hops of a way are asked for with
   the first. It is given up where a cluster ends less than `after[r]` seconds before `limit`. O(V log V + E). */
void play(const Network *net, Timed *timed, Bench *bench, const int *order, double limit, const double *after);
/* Set `tail` and `wanted` of clusters and `tail` of transfers. O(V + E). */
void tails(const Network *net, Timed *timed, Bench *bench);
/* When all that a cluster reads could be on a device, and the seconds that would still be wanted after its end there, with
   all else as it is and wires that nobody else takes; after `tails`. */
void reach(const Network *net, const Timed *now, int cluster, int device, double *ready, double *after);

/* Bytes above the caps, all devices together, of a list that has been timed. O(V D + E + V log V). */
double overfull(const Network *net, const Timed *timed, Bench *bench);

/* The schedule at hand and its neighbours. `keys` are the places of clusters and copies in the order of their starts; the
   queues have those of each device so, with their ends and, below 0, the seconds from their starts to the end of all. */
typedef struct {
    const Network *net;
    Draw *draw;
    Timed *now;
    double *keys;
    int *order;        /* clusters and copies by their keys */
    int *critical, criticals;
    double *reached;   /* [R][D][2], below 0 where not known */
    int *queue_at, *queue;
    double *queue_keys, *queue_ends, *queue_tails;
    char *mark;        /* [R], all 0 between calls */
    int *edge, *found; /* [R] */
} Beside;

typedef struct {
    int count, cluster[2], device[2];
    double key[2], length;
} Change;

/* Let a schedule be the one at hand. */
void stand(Beside *beside, Timed *now, Bench *bench, const int *order);
/* A cluster to be moved, mostly one that nothing can delay without a longer makespan. */
int a_run(Beside *beside);
/* A key between two. */
double inside(Beside *beside, double low, double high);
/* These three estimate a change of one or two clusters from when the rest begins and how long it takes after them; 0 where
   the estimate is above `limit` or nothing changes. `moved`: to another device, where it delays the end least. */
int moved(Beside *beside, int cluster, double limit, Change *change);
/* Elsewhere in the order of its device, 0 too where nothing is gained: too many orders are as good as that at hand. */
int shifted(Beside *beside, int cluster, double limit, Change *change);
/* A cluster and one of another device in each other's place. */
int exchanged(Beside *beside, int cluster, double limit, Change *change);
/* These change many devices at once, 0 if none; `gathered`: a cluster and some that are joined to it there, together. */
int gathered(Beside *beside, int cluster, int *device);
/* All of a stretch of the order that is on the device of a cluster, or all of it, and perhaps that one's the other way. */
int stretched(Beside *beside, int cluster, int *device);
/* Seconds that follow each cluster of a changed list: as long as now behind all that is changed, at best elsewhere. */
void still(const Beside *beside, const Timed *next, double *after);

/* Set `copied` and `copy_at`. */
void look_up(const Network *net, Timed *timed);
/* Leave out copies that nobody reads, and those on the devices of their clusters. */
void tidy(const Network *net, Timed *timed);
/* Leave a copy out, have it change places with its cluster, or have what a cluster waits for, and perhaps what that waits for,
   computed on its device too, which may be a new one; whether anything is changed. */
int recopied(Beside *beside, Timed *next);
#endif
