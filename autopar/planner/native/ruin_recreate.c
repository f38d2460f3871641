/* Some runs taken out of a schedule and placed anew, one after the other: ruin and recreate.

   Schrimpf, Schneider, Stamm-Wilbrandt and Dueck, "Record breaking optimization results using the ruin and recreate
   principle", Journal of Computational Physics 159, 2000. */

#include "core.h"

#include <string.h>

#define PART 0.5 /* share of the runs that are taken out at most */
#define TASTES 4
/* Weights, in where a run goes, of what is still to come and of the seconds spent on transfers. */
static const double AHEAD[TASTES] = {0.0, 0.5, 1.0, 1.0}, STAY[TASTES] = {0.0, 0.0, 0.1, 0.5};

/* Mark runs around one: a stretch of the order, or some that are joined to it. */
static void set_free(Beside *beside, char *free, int run)
{
    const Network *net = beside->net;
    double size = 2 * pow(most(1.0, PART * net->runs / 2), drawn(beside->draw));
    memset(free, 0, net->runs);
    free[run] = 1;
    if (drawn(beside->draw) < 0.5) {
        int low = (int)(beside->keys[run] - size * drawn(beside->draw));
        low = low > 0 ? low : 0;
        for (int r = 0; r < net->runs; r++)
            if (low <= beside->keys[r] && beside->keys[r] <= low + (int)size)
                free[r] = 1;
        return;
    }
    int *edge = beside->edge, edges = 1, count = 1;
    edge[0] = run;
    while (edges && count < size) {
        int at = below(beside->draw, edges), r = edge[at];
        for (edges--; at < edges; at++)
            edge[at] = edge[at + 1];
        EACH(other, net->near, r)
            if (!free[*other] && count < size) {
                free[*other] = 1;
                count++;
                edge[edges++] = *other;
            }
    }
}

/* When a value is where, and remember it. */
static const double *held(const Beside *beside, Anew *anew, const int *device, double since, int value)
{
    const Network *net = beside->net;
    const Timed *now = beside->now;
    double *there = anew->there + value * net->devices;
    if (anew->known[value])
        return there;
    anew->known[value] = 1;
    int maker = net->maker[value];
    for (int d = 0; d < net->devices; d++) {
        double came = now->shared[value] ? now->there[value * net->devices + d] : NOT_THERE;
        there[d] = (maker < 0 || anew->old[maker]) && came >= 0 && came <= since ? came : NOT_THERE;
    }
    double *source = there + (maker >= 0 ? device[maker] : net->home[value]);
    if (*source < 0)
        *source = maker >= 0 ? anew->end[maker] : 0.0;
    return there;
}

/* When all that a run reads can be on a device, and the seconds of the copies for it; if `put`, these are made. */
static double ready_on(
    const Beside *beside, Anew *anew, const int *device, double since, int run, int d, int put, double *copying)
{
    const Network *net = beside->net;
    int devices = net->devices, none = net->wires, sendings = 0;
    double ready = 0.0;
    *copying = 0.0;
    EACH(r, net->sooner, run) ready = most(ready, anew->end[*r]);
    EACH(v, net->reads, run) {
        const double *there = held(beside, anew, device, since, *v);
        double came = there[d];
        if (came < 0) {
            int maker = net->maker[*v], source = maker >= 0 ? device[maker] : net->home[*v];
            int copy = maker >= 0 ? copy_on(net, beside->now, maker, d) : 0;
            if (copy) {
                ready = most(ready, beside->now->end[copy]);
                continue;
            }
            int wire = net->hop_wire[net->hop_at[source * devices + d]];
            double takes = travel(net, *v, source, d);
            came = most(there[source], wire < none ? anew->busy[wire] : 0.0) + takes;
            *copying += takes;
            anew->sent[sendings++] = (Sent){.value = *v, .wire = wire, .came = came};
        }
        ready = most(ready, came);
    }
    /* Copies for one run do not wait for each other. */
    for (int i = 0; put && i < sendings; i++) {
        const Sent *sent = anew->sent + i;
        anew->there[sent->value * devices + d] = sent->came;
        anew->busy[sent->wire] = most(anew->busy[sent->wire], sent->came);
    }
    return ready;
}

static int first_lane(const Network *net, const Anew *anew, int d)
{
    int first = net->lane_at[d];
    for (int lane = first + 1; lane < net->lane_at[d + 1]; lane++)
        if (anew->lane_free[lane] < anew->lane_free[first])
            first = lane;
    return first;
}

/* Place a run, with the transfers that it needs. */
static void put(const Beside *beside, Anew *anew, int *device, double since, int run, int d)
{
    double copying, ready = ready_on(beside, anew, device, since, run, d, 1, &copying);
    int lane = first_lane(beside->net, anew, d);
    device[run] = d;
    anew->end[run] = most(ready, anew->lane_free[lane]) + beside->net->seconds[run * beside->net->devices + d];
    anew->lane_free[lane] = anew->end[run];
    EACH(v, beside->net->makes, run) anew->known[*v] = 0;
}

/* Seconds from the end of a run on a device to the end of all, as far as what reads from it stays. */
static double what_follows(const Beside *beside, const char *free, int run, int d)
{
    const Network *net = beside->net;
    double longest = net->to_go[run * net->devices + d];
    EACH(v, net->makes, run) {
        EACH(r, net->readers, *v)
            if (!free[*r]) {
                int stop = beside->now->device[*r];
                double seconds = net->seconds[*r * net->devices + stop];
                longest = most(longest, seconds + beside->now->tail[*r] + travel(net, *v, d, stop));
            }
    }
    return longest;
}

int rebuilt(Beside *beside, Anew *anew, int run, double heat, int *device, int *places)
{
    const Network *net = beside->net;
    const Timed *now = beside->now;
    int runs = net->runs, first = 0, changed = 0;
    *places = 0;
    set_free(beside, anew->free, run);
    while (beside->order[first] >= runs || !anew->free[beside->order[first]])
        first++;
    double since = now->start[beside->order[first]];
    memcpy(anew->end, now->end, runs * sizeof *anew->end);
    memset(anew->old, 0, runs);
    memset(anew->known, 0, net->values);
    memset(anew->lane_free, 0, net->lane_at[net->devices] * sizeof *anew->lane_free);
    memset(anew->busy, 0, (net->wires + 1) * sizeof *anew->busy);
    for (int i = 0; i < first; i++) {
        int r = beside->order[i];
        if (r < runs)
            anew->old[r] = 1;
        anew->lane_free[net->lane_at[now->device[r]] + now->lane[r]] = now->end[r];
    }
    for (int i = 0; i < now->sendings; i++) {
        const Sent *sent = now->sent + i;
        if (sent->came <= since) {
            anew->busy[sent->wire] = most(anew->busy[sent->wire], sent->came);
            anew->busy[sent->queue] = most(anew->busy[sent->queue], sent->came);
        }
    }
    double ahead = AHEAD[below(beside->draw, TASTES)], stay = STAY[below(beside->draw, TASTES)];
    for (int i = first; i < runs + now->copies; i++) {
        int r = beside->order[i], best = -1;
        if (r >= runs)
            continue;
        double lowest = INFINITY;
        ++*places;
        if (!anew->free[r]) {
            put(beside, anew, device, since, r, device[r]);
            continue;
        }
        *places += COUNT(net->allowed, r);
        EACH(d, net->allowed, r) {
            double copying, ready = ready_on(beside, anew, device, since, r, *d, 0, &copying);
            double end = most(ready, anew->lane_free[first_lane(net, anew, *d)]) + net->seconds[r * net->devices + *d];
            double score = end + ahead * what_follows(beside, anew->free, r, *d) + stay * copying;
            score += heat * drawn(beside->draw);
            if (score < lowest) {
                lowest = score;
                best = *d;
            }
        }
        if (best < 0)
            return 0;
        changed |= best != now->device[r];
        put(beside, anew, device, since, r, best);
    }
    return changed;
}
