/* Simulated annealing of one list, each step timed with FIFO buses: Kirkpatrick, Gelatt and Vecchi,
   "Optimization by simulated annealing", Science 220, 1983. */

#include "core.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PUBLIC __attribute__((visibility("default")))

/* Relative weights of the moves: one cluster to another device, one on its own device, two exchanged, many
   together. */
enum { MOVES = 4, SHIFTS = 2, EXCHANGES = 3, GROUPS = 2, FEW = MOVES + SHIFTS + EXCHANGES };
enum {
    TRIED = 6,    /* clusters for each estimated change; the best of these changes is timed */
    ESTIMATE = 5, /* steps that an estimate counts as */
    LOOKS = 16,   /* changes between updates of the temperature and looks at the clock */
};
/* Weight of the ends of the other devices. If clusters are alike, many schedules have the same makespan; the
   one that leaves more room is nearer to a shorter one. */
#define EARLY 0.03

/* State of a chain, in and out. `best` has room for `keep` lists, shortest first; `spent` counts steps. */
typedef struct {
    List now, *best;
    int count, keep;
    double bound, spent;
    Draw draw;
} Chain;

typedef struct {
    Chain *chain;
    const Network *net;
    Beside beside;
    Bench bench;
    Timed timed[2], *next;
    double *after;
    int *order;
} Search;

static double monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Take `bytes` of a block, or only add them up without one. */
static void *take(char *block, size_t *taken, size_t bytes)
{
    void *found = block ? block + *taken : NULL;
    *taken += (bytes + 15) / 16 * 16;
    return found;
}

static size_t lay_out(Search *search, const Network *net, char *block)
{
    size_t taken = 0, clusters = net->clusters, devices = net->devices, values = net->values;
    size_t lanes = net->lane_at[devices], wires = net->wires + 1;
#define ROOM(pointer, count) pointer = take(block, &taken, (count) * sizeof *(pointer))
    for (int i = 0; i < 2; i++) {
        Timed *timed = search->timed + i;
        ROOM(timed->device, clusters), ROOM(timed->lane, clusters), ROOM(timed->ended, clusters), ROOM(timed->keys, clusters);
        ROOM(timed->ready, clusters), ROOM(timed->start, clusters), ROOM(timed->end, clusters), ROOM(timed->tail, clusters);
        ROOM(timed->wanted, clusters), ROOM(timed->there, values * devices), ROOM(timed->shared, values);
        ROOM(timed->sent, values * devices);
    }
    Bench *bench = &search->bench;
    ROOM(bench->missing, clusters), ROOM(bench->able, clusters), ROOM(bench->queue, clusters), ROOM(bench->queue_at, devices + 2);
    ROOM(bench->at, devices), ROOM(bench->idle, lanes), ROOM(bench->idles, devices), ROOM(bench->pools, devices);
    ROOM(bench->begun, devices), ROOM(bench->lane_free, lanes), ROOM(bench->busy, wires);
    ROOM(bench->onward, values * devices), ROOM(bench->touched, 2 * devices);
    ROOM(bench->events, 2 * clusters + 2), ROOM(bench->pool, clusters);
    if (net->capped) {
        ROOM(bench->since, values * devices), ROOM(bench->until, values * devices);
        ROOM(bench->levels, 2 * (values + clusters)), ROOM(bench->stored, net->storages + 1);
    }
    Beside *beside = &search->beside;
    ROOM(beside->keys, clusters), ROOM(beside->order, clusters), ROOM(beside->critical, clusters);
    ROOM(beside->reached, 2 * clusters * devices), ROOM(beside->queue_at, devices + 2), ROOM(beside->queue, clusters);
    ROOM(beside->queue_keys, clusters), ROOM(beside->queue_ends, clusters), ROOM(beside->queue_tails, clusters);
    ROOM(beside->mark, clusters), ROOM(beside->edge, clusters), ROOM(beside->found, clusters);
    ROOM(search->after, clusters), ROOM(search->order, clusters);
#undef ROOM
    return taken;
}

/* Sort the clusters by key, starting from an order close to it. */
static void sort(const Search *search, const int *from, const double *keys)
{
    int *order = search->order;
    for (int i = 0; i < search->net->clusters; i++) {
        int r = from ? from[i] : i, at = i;
        for (; at && (keys[r] < keys[order[at - 1]] || (keys[r] == keys[order[at - 1]] && r < order[at - 1])); at--)
            order[at] = order[at - 1];
        order[at] = r;
    }
}

/* `EARLY` times the mean end of all devices but the last. */
static double early(const Search *search, const Timed *timed)
{
    double sum = 0.0, longest = 0.0, *last = search->bench.begun;
    int devices = search->net->devices;
    memset(last, 0, devices * sizeof *last);
    for (int i = 0; i < timed->endings; i++)
        last[timed->device[timed->ended[i]]] = timed->end[timed->ended[i]];
    for (int d = 0; d < devices; d++) {
        sum += last[d];
        longest = most(longest, last[d]);
    }
    return EARLY * (sum - longest) / (devices > 2 ? devices - 1 : 1);
}

/* Time the changed list `next`. */
static void timing(Search *search, double limit, int eager)
{
    const Network *net = search->net;
    Timed *next = search->next;
    const int *device = search->beside.now->device;
    for (int group = 0; group < net->groups; group++) {
        int target = -1;
        EACH(r, net->members, group)
            if (target < 0 && next->device[*r] != device[*r])
                target = next->device[*r];
        if (target >= 0)
            EACH(r, net->members, group) next->device[*r] = target;
    }
    next->eager = eager;
    still(&search->beside, next, search->after);
    sort(search, search->beside.order, next->keys);
    play(net, next, &search->bench, search->order, limit, search->after);
    if (net->capped && next->makespan <= limit)
        next->over = overfull(net, next, &search->bench);
    search->chain->spent += ESTIMATE + next->endings;
}

/* Move one or two clusters: of several such changes, the one estimated best, give or take the heat. */
static int few(Search *search, double limit, double heat)
{
    Beside *beside = &search->beside;
    int tried = 1 + search->net->clusters / TRIED;
    double lowest = INFINITY;
    Change change, chosen = {.count = 0};
    search->chain->spent += ESTIMATE * tried;
    while (tried--) {
        int way = below(beside->draw, FEW), cluster = a_run(beside), found;
        if (way < MOVES)
            found = moved(beside, cluster, limit, &change);
        else if (way < MOVES + SHIFTS)
            found = shifted(beside, cluster, limit, &change);
        else
            found = exchanged(beside, cluster, limit, &change);
        if (found) {
            double length = change.length - heat * drawn(beside->draw);
            if (length < lowest) {
                lowest = length;
                chosen = change;
            }
        }
    }
    for (int i = 0; i < chosen.count; i++) {
        search->next->device[chosen.cluster[i]] = chosen.device[i];
        search->next->keys[chosen.cluster[i]] = chosen.key[i];
    }
    if (chosen.count)
        timing(search, limit, 0);
    return chosen.count;
}

static void copy(size_t clusters, int *device, double *keys, const int *from_device, const double *from_keys)
{
    memcpy(device, from_device, clusters * sizeof *device);
    memcpy(keys, from_keys, clusters * sizeof *keys);
}

static void store(const Network *net, List *list, const Timed *timed)
{
    copy(net->clusters, list->device, list->keys, timed->device, timed->keys);
    list->eager = timed->eager;
    list->makespan = timed->makespan;
    list->over = timed->over;
}

static void keep(const Network *net, Chain *chain, const Timed *timed)
{
    List last = chain->best[chain->keep - 1];
    memmove(chain->best + 1, chain->best, (chain->keep - 1) * sizeof last);
    store(net, &last, timed);
    chain->best[0] = last;
    if (chain->count < chain->keep)
        chain->count++;
}

static void go_on(Search *search, double steps, double hot, double cold, double end)
{
    const Network *net = search->net;
    Chain *chain = search->chain;
    Beside *beside = &search->beside;
    Draw *draw = beside->draw;
    double room = early(search, beside->now), share = hot;
    chain->spent = 0.0;
    for (int turn = 0; chain->spent < steps && chain->best[0].makespan > chain->bound; turn++) {
        if (turn % LOOKS == 0) {
            if (monotonic() > end)
                break;
            share = hot * pow(cold / hot, chain->spent / steps);
        }
        double heat = share * chain->best[0].makespan;
        double limit = beside->now->makespan - heat * log(1 - drawn(draw));
        double kind = drawn(draw) * (FEW + GROUPS);
        Timed *next = search->next;
        int found;
        copy(net->clusters, next->device, next->keys, beside->now->device, beside->keys);
        if (kind < FEW) {
            found = few(search, limit, heat);
        } else {
            chain->spent += ESTIMATE;
            int closely = drawn(draw) < 0.5, cluster = a_run(beside);
            found = closely ? gathered(beside, cluster, next->device) : stretched(beside, cluster, next->device);
            if (found)
                timing(search, limit, 1);
        }
        if (!found || !(next->makespan <= limit) || next->over > beside->now->over)
            continue;
        double now = early(search, next);
        if (next->makespan + now > limit + room && next->makespan >= chain->best[0].makespan)
            continue;
        room = now;
        search->next = beside->now;
        stand(beside, next, &search->bench, search->order);
        chain->spent += net->clusters / 2.0;
        const List *best = chain->best;
        if (next->over < best->over || (next->over == best->over && next->makespan < best->makespan))
            keep(net, chain, next);
    }
}

/* Allocate a search and time the list that it starts from; NULL if memory runs out. */
static char *begun(Search *search, const Network *net, const List *list)
{
    size_t bytes = lay_out(search, net, NULL);
    char *block = calloc(1, bytes);
    if (!block)
        return NULL;
    lay_out(search, net, block);
    Timed *now = search->timed;
    now->eager = list->eager;
    copy(net->clusters, now->device, now->keys, list->device, list->keys);
    for (int r = 0; r < net->clusters; r++)
        search->after[r] = net->to_go[r * net->devices + now->device[r]];
    /* Timing an eager list needs no order, and sorting is slow if keys are far from graph order. */
    if (search->chain || !now->eager)
        sort(search, NULL, now->keys);
    play(net, now, &search->bench, search->order, INFINITY, search->after);
    if (net->capped)
        now->over = overfull(net, now, &search->bench);
    return block;
}

/* Time a list: makespan, bytes above the caps and, by number, starts, ends and lanes. Returns 0, or -1 if memory
   runs out. */
PUBLIC int autopar_time(const Network *net, List *list, double *start, double *end, int *lane)
{
    Search search = {.net = net};
    size_t clusters = net->clusters;
    char *block = begun(&search, net, list);
    if (!block)
        return -1;
    const Timed *timed = search.timed;
    memcpy(start, timed->start, clusters * sizeof *start);
    memcpy(end, timed->end, clusters * sizeof *end);
    memcpy(lane, timed->lane, clusters * sizeof *lane);
    list->makespan = timed->makespan;
    list->over = timed->over;
    free(block);
    return 0;
}

/* Continue a chain for about `steps` steps and at most `s` seconds, from temperature `hot` to `cold`, each a
   share of the shortest makespan. Returns 0, or -1 if memory runs out. */
PUBLIC int autopar_cool(const Network *net, Chain *chain, double steps, double hot, double cold, double s)
{
    Search search = {.chain = chain, .net = net};
    double end = monotonic() + s;
    char *block = begun(&search, net, &chain->now);
    if (!block)
        return -1;
    search.next = search.timed + 1;
    search.beside.net = net;
    search.beside.draw = &chain->draw;
    stand(&search.beside, search.timed, &search.bench, search.order);
    go_on(&search, steps, hot, cold, end);
    store(net, &chain->now, search.beside.now);
    free(block);
    return 0;
}
