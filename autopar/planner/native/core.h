/* Data structures of the search. Arrays of several dimensions are flat, the last index running fastest. Times
   are in seconds, inf without a route. search/__init__.py fills in the structures that come from Python. */

#ifndef AUTOPAR_NETWORK_H
#define AUTOPAR_NETWORK_H

#include <math.h>
#include <stdint.h>

#define NEAR 1e-9 /* share of the makespan below which a delay counts as none */
#define NOT_THERE -1.0

/* The entries of list i are of[at[i]] to of[at[i + 1] - 1]. */
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

/* R clusters on D devices with W buses and copy queues (index W: none) and V values. `makes` has the values
   of each cluster and, at R, those that exist before the call. `later` are the clusters that wait for one
   without reading from it, `sooner` the reverse; `waits` counts all values and clusters that one waits for.
   `near` are predecessors and successors. `to_go`: least seconds from the end of a cluster on a device to the
   end. `members` share a device.

   If `capped`, in bytes: `room` of a device, `size` of a value, `scratch` of a running cluster, `stored` of
   each storage that a cluster `keeps` on its device. Copies of a value that `stays` are never freed; values
   that exist before the call are freed after their last use if `given_up`, otherwise never. */
typedef struct {
    int clusters, devices, wires, values, groups, storages, capped, given_up;
    const int *lane_at;             /* [D + 1] */
    const double *seconds, *to_go;  /* [R][D] */
    const double *bytes;            /* [V] */
    const double *latency, *s_per_byte; /* [D][D] */
    const int *hop_at;              /* [D][D] + 1 */
    const int *hop_wire, *hop_queue, *hop_stop;
    const double *hop_latency, *hop_s_per_byte;
    Lists makes, readers, deliver, reads, sooner, later, near, before, after, allowed, members, keeps;
    const int *waits, *maker, *home, *stays; /* [R], [V], [V], [V] */
    const double *room, *stored, *size, *scratch; /* [D], [S][D], [V], [R] */
} Network;

/* A list to time: `device`, `keys` [R]; `over` bytes above the caps. */
typedef struct {
    int *device, eager;
    double *keys, makespan, over;
} List;

/* Seconds of a value from one device to another over idle buses. */
static inline double travel(const Network *net, int value, int source, int target)
{
    int way = source * net->devices + target;
    return net->latency[way] + net->bytes[value] * net->s_per_byte[way];
}

/* A transfer of a value that a cluster makes (R: none): its seconds, start, arrival and tail. */
typedef struct {
    int cluster, value, source, stop, wire, queue;
    double takes, went, came, tail;
} Sent;

/* A list with its times. Each device starts its clusters in the order of their `keys`, as early as possible,
   even on several lanes; if `eager`, it starts any ready cluster, the least key first. `ready` is when
   everything that a cluster waits for is there. `ended` has the `endings` clusters by end, `sent` the
   transfers in the order of their requests. `tail` is the seconds from the end of a cluster to the end of the
   schedule, along everything that waits for it; `wanted` ignores its lane. `makespan` is inf without a route,
   in a deadlock, or if timing stopped early. `over` is the bytes above the caps, summed over the devices. */
typedef struct {
    int *device, *lane, *ended, eager, endings, sendings;
    double *keys, *ready, *start, *end, *tail, *wanted, makespan, over;
    double *there;     /* [V][D], NOT_THERE where a value never is */
    char *shared;      /* [V], whether `there` is known, as for values that several clusters read */
    Sent *sent;        /* [V * D] */
} Timed;

typedef struct {
    double at;
    int id;
} Event;

typedef struct {
    double at, bytes;
} Level;

/* Working memory to time one list and compute its tails. */
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

/* Time a list; `order` has clusters by key, unless it is eager. Second hops are requested with
   the first. Stops once a cluster would end less than `after[r]` seconds before `limit`. O(V log V + E). */
void play(const Network *net, Timed *timed, Bench *bench, const int *order, double limit, const double *after);
/* Set `tail` and `wanted` of clusters and `tail` of transfers. O(V + E). */
void tails(const Network *net, Timed *timed, Bench *bench);
/* When all inputs of a cluster could be on a device, and the seconds that would follow its end there, with
   all else unchanged and idle buses; after `tails`. */
void reach(const Network *net, const Timed *now, int cluster, int device, double *ready, double *after);

/* Bytes above the caps, summed over the devices, of a list that has been timed. O(V D + E + V log V). */
double overfull(const Network *net, const Timed *timed, Bench *bench);

/* The current schedule and its neighbours. `keys` number clusters by start; the queues have those
   of each device in this order, with their ends and the negated seconds from start to the very end. */
typedef struct {
    const Network *net;
    Draw *draw;
    Timed *now;
    double *keys;
    int *order;        /* clusters by their keys */
    int *critical, criticals;
    double *reached;   /* [R][D][2], below 0 if not known */
    int *queue_at, *queue;
    double *queue_keys, *queue_ends, *queue_tails;
    char *mark;        /* [R], all 0 between calls */
    int *edge, *found; /* [R] */
} Beside;

typedef struct {
    int count, cluster[2], device[2];
    double key[2], length;
} Change;

/* Make a schedule the current one. */
void stand(Beside *beside, Timed *now, Bench *bench, const int *order);
/* Draw a cluster to move, mostly one whose delay would lengthen the makespan. */
int a_run(Beside *beside);
/* Draw a key between two. */
double inside(Beside *beside, double low, double high);
/* These three estimate a change of one or two clusters from the times and tails of the rest; 0 if the
   estimate exceeds `limit` or nothing changes. `moved`: to another device, where it delays the end least. */
int moved(Beside *beside, int cluster, double limit, Change *change);
/* Elsewhere in the order of its device; also 0 without a gain, as too many orders are equally good. */
int shifted(Beside *beside, int cluster, double limit, Change *change);
/* A cluster changes places with one of another device. */
int exchanged(Beside *beside, int cluster, double limit, Change *change);
/* These two move many clusters at once; 0 if none. `gathered`: a cluster and connected ones on its device. */
int gathered(Beside *beside, int cluster, int *device);
/* A stretch of the order: the clusters on a device, or all, to another, and perhaps the latter's back. */
int stretched(Beside *beside, int cluster, int *device);
/* Least seconds that follow each cluster of a changed list: as now if it comes after all changes. */
void still(const Beside *beside, const Timed *next, double *after);
#endif
