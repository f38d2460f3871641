/* The times of one list, with FIFO buses. */

#include "core.h"

#include <string.h>

static int sooner(Event a, Event b)
{
    return a.at < b.at || (a.at == b.at && a.id < b.id);
}

static void push(Event *heap, int *count, Event event)
{
    int i = (*count)++;
    while (i && sooner(event, heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = event;
}

static Event pop(Event *heap, int *count)
{
    Event least = heap[0], last = heap[--*count];
    int i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= *count)
            break;
        if (child + 1 < *count && sooner(heap[child + 1], heap[child]))
            child++;
        if (!sooner(heap[child], last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return least;
}

/* Note that one thing that a cluster waits for is there. */
static inline void arrive(Timed *timed, Bench *bench, int number, double came, int *ables)
{
    if (came > timed->ready[number])
        timed->ready[number] = came;
    if (!--bench->missing[number])
        bench->able[(*ables)++] = number;
}

static void carry(const Network *net, Timed *timed, Bench *bench, int cluster, int value, int source, int target)
{
    int none = net->wires, way = source * net->devices + target;
    double *there = timed->there + value * net->devices, *busy = bench->busy;
    for (int hop = net->hop_at[way]; hop < net->hop_at[way + 1]; hop++) {
        int wire = net->hop_wire[hop], queue = net->hop_queue[hop], stop = net->hop_stop[hop];
        if (there[stop] < 0) {
            double takes = net->hop_latency[hop] + net->bytes[value] * net->hop_s_per_byte[hop];
            double went = most(there[source], most(busy[wire], busy[queue])), came = went + takes;
            there[stop] = busy[wire] = busy[queue] = came;
            busy[none] = 0.0;
            timed->sent[timed->sendings++] = (Sent){
                .cluster = cluster, .value = value, .source = source, .stop = stop, .wire = wire, .queue = queue,
                .takes = takes, .went = went, .came = came, .tail = 0.0,
            };
        }
        source = stop;
    }
}

void play(const Network *net, Timed *timed, Bench *bench, const int *order, double limit, const double *after)
{
    int clusters = net->clusters, devices = net->devices, none = net->wires, eager = timed->eager;
    int all = clusters + 1;
    const int *device = timed->device, *lane_at = net->lane_at;
    double *ready = timed->ready, *start = timed->start, *end = timed->end;
    int *missing = bench->missing, *able = bench->able, *queue = bench->queue, *queue_at = bench->queue_at;
    int events = 0, ables = 0, cluster = clusters;
    double last = 0.0, now = 0.0;

    timed->makespan = INFINITY;
    timed->endings = timed->sendings = 0;
    memcpy(missing, net->waits, clusters * sizeof *missing);
    memset(timed->shared, 0, net->values);
    memset(bench->busy, 0, (none + 1) * sizeof *bench->busy);
    memset(bench->lane_free, 0, lane_at[devices] * sizeof *bench->lane_free);
    memset(queue_at, 0, (devices + 2) * sizeof *queue_at);
    for (int r = 0; r < clusters; r++) {
        ready[r] = 0.0;
        queue_at[device[r] + 2]++;
        if (!missing[r])
            able[ables++] = r;
    }
    for (int d = 0; d < devices; d++) {
        queue_at[d + 2] += queue_at[d + 1];
        bench->at[d] = queue_at[d + 1];
        bench->begun[d] = 0.0;
        bench->pools[d] = 0;
        bench->touched[d] = 0;
        bench->idles[d] = lane_at[d + 1] - lane_at[d];
        for (int k = 0; k < bench->idles[d]; k++)
            bench->idle[lane_at[d] + k] = k;
    }
    /* From here on, the clusters of d are queue[queue_at[d + 1]] to queue[queue_at[d + 2] - 1]. */
    if (!eager) {
        for (int i = 0; i < clusters; i++)
            queue[bench->at[device[order[i]]]++] = order[i];
        for (int d = 0; d < devices; d++)
            bench->at[d] = queue_at[d + 1];
    }
    for (;;) {
        if (cluster <= clusters) {
            EACH(value, net->makes, cluster) {
                int v = *value, source = cluster < clusters ? device[cluster] : net->home[v];
                double *there = timed->there + v * devices;
                if (none) {
                    for (int d = 0; d < devices; d++)
                        there[d] = NOT_THERE;
                    there[source] = now;
                    if (COUNT(net->readers, v) > 1 || COUNT(net->deliver, v)) {
                        timed->shared[v] = 1;
                        char *wanted = bench->touched + devices;
                        memset(wanted, 0, devices);
                        EACH(r, net->readers, v) wanted[device[*r]] = 1;
                        EACH(d, net->deliver, v) wanted[*d] = 1;
                        for (int d = 0; d < devices; d++)
                            if (wanted[d] && there[d] < 0)
                                carry(net, timed, bench, cluster, v, source, d);
                    } else if (COUNT(net->readers, v)) {
                        int target = device[net->readers.of[net->readers.at[v]]];
                        if (target != source)
                            carry(net, timed, bench, cluster, v, source, target);
                    }
                }
                EACH(d, net->deliver, v)
                    last = most(last, none ? there[*d] : now + travel(net, v, source, *d));
                EACH(r, net->readers, v)
                    arrive(timed, bench, *r, none ? there[device[*r]] : now + travel(net, v, source, device[*r]), &ables);
            }
            EACH(r, net->later, cluster) arrive(timed, bench, *r, now, &ables);
        }
        if (eager) {
            for (int i = 0; i < ables; i++)
                push(bench->events, &events, (Event){ready[able[i]], all + able[i]});
            if (!events || bench->events[0].at > now)
                for (int d = 0; d < devices; d++)
                    if (bench->touched[d]) {
                        Event *pool = bench->pool + queue_at[d + 1];
                        while (bench->pools[d] && bench->idles[d]) {
                            int r = pop(pool, &bench->pools[d]).id;
                            double finish = now + net->seconds[r * devices + d];
                            if (finish + after[r] > limit)
                                return;
                            start[r] = now;
                            timed->lane[r] = bench->idle[lane_at[d] + --bench->idles[d]];
                            push(bench->events, &events, (Event){finish, r});
                        }
                        bench->touched[d] = 0;
                    }
        } else {
            for (int i = 0; i < ables; i++) {
                int d = device[able[i]], lanes = lane_at[d + 1] - lane_at[d];
                double *lane_free = bench->lane_free + lane_at[d];
                while (bench->at[d] < queue_at[d + 2]) {
                    int r = queue[bench->at[d]], k = 0;
                    if (missing[r])
                        break;
                    for (int other = 1; other < lanes; other++)
                        if (lane_free[other] < lane_free[k])
                            k = other;
                    double begin = most(most(ready[r], bench->begun[d]), lane_free[k]);
                    double finish = begin + net->seconds[r * devices + d];
                    if (finish + after[r] > limit)
                        return;
                    start[r] = bench->begun[d] = begin;
                    timed->lane[r] = k;
                    lane_free[k] = finish;
                    push(bench->events, &events, (Event){finish, r});
                    bench->at[d]++;
                }
            }
        }
        if (!events)
            break;
        ables = 0;
        Event event = pop(bench->events, &events);
        now = event.at;
        cluster = event.id;
        if (cluster < all) {
            int d = device[cluster];
            end[cluster] = now;
            timed->ended[timed->endings++] = cluster;
            if (eager) {
                bench->idle[lane_at[d] + bench->idles[d]++] = timed->lane[cluster];
                bench->touched[d] = 1;
            }
        } else {
            int r = cluster - all, d = device[r];
            push(bench->pool + queue_at[d + 1], &bench->pools[d], (Event){timed->keys[r], r});
            bench->touched[d] = 1;
        }
    }
    if (timed->endings == clusters)
        timed->makespan = most(last, now);
}

void tails(const Network *net, Timed *timed, Bench *bench)
{
    int devices = net->devices, none = net->wires, number = timed->sendings;
    const int *device = timed->device;
    double *behind = bench->lane_free, *waiting = bench->busy, *onward = bench->onward;
    memset(behind, 0, net->lane_at[devices] * sizeof *behind);
    memset(waiting, 0, (none + 1) * sizeof *waiting);
    memset(onward, 0, (size_t)net->values * devices * sizeof *onward);
    for (int i = timed->endings - 1; i >= 0; i--) {
        int cluster = timed->ended[i], d = device[cluster];
        double longest = 0.0;
        for (; number && timed->sent[number - 1].cluster == cluster; number--) {
            Sent *sent = timed->sent + number - 1;
            double after = most(onward[sent->value * devices + sent->stop],
                                most(waiting[sent->wire], waiting[sent->queue]));
            EACH(r, net->readers, sent->value)
                if (device[*r] == sent->stop)
                    after = most(after, net->seconds[*r * devices + sent->stop] + timed->tail[*r]);
            waiting[sent->wire] = waiting[sent->queue] = after + sent->takes;
            waiting[none] = 0.0;
            sent->tail = after;
            double *before = sent->source == d ? &longest : onward + sent->value * devices + sent->source;
            *before = most(*before, after + sent->takes);
        }
        EACH(v, net->makes, cluster) {
            EACH(r, net->readers, *v) {
                int stop = device[*r];
                if (stop == d || !none)
                    longest =
                        most(longest, net->seconds[*r * devices + stop] + timed->tail[*r] + travel(net, *v, d, stop));
            }
            if (!none)
                EACH(stop, net->deliver, *v) longest = most(longest, travel(net, *v, d, *stop));
        }
        EACH(r, net->later, cluster)
            longest = most(longest, net->seconds[*r * devices + device[*r]] + timed->tail[*r]);
        timed->wanted[cluster] = longest;
        double *lane = behind + net->lane_at[d] + timed->lane[cluster];
        timed->tail[cluster] = most(longest, *lane);
        *lane = timed->tail[cluster] + net->seconds[cluster * devices + d];
    }
}

void reach(const Network *net, const Timed *now, int cluster, int device, double *ready, double *after)
{
    int devices = net->devices;
    const int *where = now->device;
    if (device == where[cluster]) {
        *ready = now->ready[cluster];
        *after = now->wanted[cluster];
        return;
    }
    *ready = *after = 0.0;
    EACH(v, net->reads, cluster) {
        double came = now->shared[*v] ? now->there[*v * devices + device] : NOT_THERE;
        if (came < 0) {
            int maker = net->maker[*v], source = maker >= 0 ? where[maker] : net->home[*v];
            came = (maker >= 0 ? now->end[maker] : 0.0) + travel(net, *v, source, device);
        }
        *ready = most(*ready, came);
    }
    EACH(r, net->sooner, cluster) *ready = most(*ready, now->end[*r]);
    EACH(v, net->makes, cluster) {
        EACH(r, net->readers, *v) {
            int d = where[*r];
            *after = most(*after, net->seconds[*r * devices + d] + now->tail[*r] + travel(net, *v, device, d));
        }
        EACH(d, net->deliver, *v) *after = most(*after, travel(net, *v, device, *d));
    }
    EACH(r, net->later, cluster) *after = most(*after, net->seconds[*r * devices + where[*r]] + now->tail[*r]);
}
