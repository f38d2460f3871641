/* Bytes in use on each device over time, counted as in planner/model/timing.py, but views take none. */

#include "core.h"

#include <stdlib.h>
#include <string.h>

static int by_time(const void *a, const void *b)
{
    const Level *one = a, *other = b;
    if (one->at != other->at)
        return one->at < other->at ? -1 : 1;
    /* Bytes freed at a moment make room for those taken at the same moment. */
    return one->bytes < other->bytes ? -1 : one->bytes > other->bytes;
}

static void hold(Bench *bench, int at, double since, double until)
{
    if (bench->since[at] < 0)
        bench->since[at] = since;
    bench->until[at] = most(bench->until[at], until);
}

/* Hold a value that comes to a device, if there are no buses or copy queues: it is then not in `sent`. */
static void bring(const Network *net, const Timed *timed, Bench *bench, int v, int target)
{
    int maker = net->maker[v], source = maker < 0 ? net->home[v] : timed->device[maker];
    double made = maker < 0 ? 0.0 : timed->end[maker], came = made + travel(net, v, source, target);
    if (net->wires || bench->since[v * net->devices + target] >= 0)
        return;
    hold(bench, v * net->devices + target, made, net->stays[v] ? INFINITY : came);
    hold(bench, v * net->devices + source, made, came);
}

/* Find since when and until when each value is on each device. */
static void spans(const Network *net, const Timed *timed, Bench *bench)
{
    int devices = net->devices;
    const int *device = timed->device;
    for (int i = 0; i < net->values * devices; i++) {
        bench->since[i] = NOT_THERE;
        bench->until[i] = 0.0;
    }
    for (int r = 0; r < net->clusters; r++)
        EACH(v, net->makes, r) hold(bench, *v * devices + device[r], timed->start[r], timed->end[r]);
    if (net->given_up)
        EACH(v, net->makes, net->clusters) hold(bench, *v * devices + net->home[*v], 0.0, 0.0);
    for (int i = 0; i < timed->sendings; i++) {
        const Sent *sent = timed->sent + i;
        hold(bench, sent->value * devices + sent->stop, sent->went,
             net->stays[sent->value] ? INFINITY : sent->came);
        hold(bench, sent->value * devices + sent->source, sent->came, sent->came);
    }
    for (int v = 0; v < net->values; v++) {
        EACH(r, net->readers, v) {
            bring(net, timed, bench, v, device[*r]);
            hold(bench, v * devices + device[*r], timed->ready[*r], timed->end[*r]);
        }
        EACH(d, net->deliver, v) {
            bring(net, timed, bench, v, *d);
            if (!net->given_up)
                hold(bench, v * devices + *d, timed->makespan, INFINITY);
        }
    }
}

static int levels(const Network *net, const Timed *timed, Bench *bench, int d)
{
    int devices = net->devices, count = 0;
    for (int v = 0; v < net->values; v++) {
        int at = v * devices + d;
        /* `room` already leaves out values that exist before the call and stay. */
        if (bench->since[at] < 0 || !(net->size[v] > 0) || (net->maker[v] < 0 && net->home[v] == d && !net->given_up))
            continue;
        bench->levels[count++] = (Level){bench->since[at], net->size[v]};
        bench->levels[count++] = (Level){bench->until[at], -net->size[v]};
    }
    for (int r = 0; r < net->clusters; r++) {
        double scratch = net->scratch[r];
        if (scratch > 0 && timed->device[r] == d) {
            bench->levels[count++] = (Level){timed->start[r], scratch};
            bench->levels[count++] = (Level){timed->end[r], -scratch};
        }
    }
    return count;
}

double overfull(const Network *net, const Timed *timed, Bench *bench)
{
    int devices = net->devices;
    double over = 0.0;
    spans(net, timed, bench);
    for (int d = 0; d < devices; d++) {
        if (net->room[d] == INFINITY)
            continue;
        double used = 0.0;
        memset(bench->stored, 0, net->storages);
        for (int r = 0; r < net->clusters; r++)
            if (timed->device[r] == d)
                EACH(storage, net->keeps, r)
                    if (!bench->stored[*storage]) {
                        bench->stored[*storage] = 1;
                        used += net->stored[*storage * devices + d];
                    }
        double peak = used;
        int count = levels(net, timed, bench, d);
        qsort(bench->levels, count, sizeof *bench->levels, by_time);
        for (int i = 0; i < count; i++) {
            used += bench->levels[i].bytes;
            peak = most(peak, used);
        }
        over += most(0.0, peak - net->room[d]);
    }
    return over;
}
