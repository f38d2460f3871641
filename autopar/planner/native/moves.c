/* Changes of a schedule: a cluster of its critical paths moves, two clusters change places, or many clusters
   move to another device at once.

   A cluster goes where it delays the end least: the best insertion of Mastrolilli and Gambardella ("Effective neighbourhood
   functions for the flexible job shop problem", Journal of Scheduling 3(1), 2000), with transfers. */

#include "core.h"

#define CRITICAL 0.9 /* how often a cluster of a critical path is taken */
#define BESIDE 0.5   /* how often the device of a neighbour is tried */
enum {
    CLOSE = 2,     /* most places from the best one to the cluster to exchange with */
    GATHERED = 12, /* most clusters moved together, half of the time */
    FAR = 64,      /* most clusters otherwise: if transfers take long, branches must move whole */
};

/* Return what `reach` computes, once for each cluster and device. */
static const double *reached(Beside *beside, int cluster, int device)
{
    double *found = beside->reached + 2 * (cluster * beside->net->devices + device);
    if (found[0] < 0)
        reach(beside->net, beside->now, cluster, device, found, found + 1);
    return found;
}

/* Count the sorted numbers below `at` or, if `equal`, not above it. */
static inline int rank_of(const double *sorted, int count, double at, int equal)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (sorted[middle] < at || (equal && sorted[middle] == at))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int left_of(const double *sorted, int count, double at)
{
    return rank_of(sorted, count, at, 0);
}

static int right_of(const double *sorted, int count, double at)
{
    return rank_of(sorted, count, at, 1);
}

static int is_allowed(const Network *net, int cluster, int device)
{
    EACH(d, net->allowed, cluster)
        if (*d == device)
            return 1;
    return 0;
}

static int lanes_of(const Network *net, int device)
{
    return net->lane_at[device + 1] - net->lane_at[device];
}

/* Find the range of keys of a cluster: after its predecessors, before its successors. */
static void between(const Beside *beside, int cluster, double *low, double *high)
{
    const Network *net = beside->net;
    *low = -1.0;
    *high = net->clusters;
    EACH(r, net->before, cluster) *low = most(*low, beside->keys[*r]);
    EACH(r, net->after, cluster) *high = least(*high, beside->keys[*r]);
}

double inside(Beside *beside, double low, double high)
{
    return low + (high - low) * (0.01 + 0.98 * drawn(beside->draw));
}

static void add_critical(Beside *beside, int cluster)
{
    if (!beside->mark[cluster]) {
        beside->mark[cluster] = 1;
        beside->critical[beside->criticals++] = cluster;
    }
}

void stand(Beside *beside, Timed *now, Bench *bench, const int *order)
{
    const Network *net = beside->net;
    int clusters = net->clusters, devices = net->devices;
    double limit = now->makespan * (1 - NEAR);
    tails(net, now, bench);
    beside->now = now;
    /* `order` is close to the order of starts, so each cluster moves only a few places. */
    for (int i = 0; i < clusters; i++) {
        int r = order[i], at = i;
        for (; at; at--) {
            int other = beside->order[at - 1];
            if (now->start[other] < now->start[r] ||
                (now->start[other] == now->start[r] &&
                 (now->end[other] < now->end[r] || (now->end[other] == now->end[r] && other < r))))
                break;
            beside->order[at] = other;
        }
        beside->order[at] = r;
    }
    int *queue_at = beside->queue_at;
    for (int d = 0; d < devices + 2; d++)
        queue_at[d] = 0;
    for (int r = 0; r < clusters; r++)
        queue_at[now->device[r] + 2]++;
    for (int d = 0; d < devices; d++)
        queue_at[d + 2] += queue_at[d + 1];
    /* Once all clusters are queued, those of d are queue[queue_at[d]] to queue[queue_at[d + 1] - 1]. */
    for (int i = 0; i < clusters; i++) {
        int r = beside->order[i], d = now->device[r], at = queue_at[d + 1]++;
        beside->keys[r] = i;
        beside->queue[at] = r;
        beside->queue_keys[at] = i;
        beside->queue_ends[at] = now->end[r];
        beside->queue_tails[at] = -(net->seconds[r * devices + d] + now->tail[r]);
    }
    for (int i = 0; i < 2 * clusters * devices; i++)
        beside->reached[i] = -1.0;
    beside->criticals = 0;
    for (int r = 0; r < clusters; r++)
        if (now->end[r] + now->tail[r] >= limit)
            add_critical(beside, r);
    for (int i = 0; i < now->sendings; i++) {
        const Sent *sent = now->sent + i;
        if (sent->came + sent->tail < limit)
            continue;
        if (sent->cluster < clusters)
            add_critical(beside, sent->cluster);
        EACH(r, net->readers, sent->value)
            if (now->device[*r] == sent->stop)
                add_critical(beside, *r);
    }
    for (int i = 0; i < beside->criticals; i++)
        beside->mark[beside->critical[i]] = 0;
    if (!beside->criticals)
        for (int r = 0; r < clusters; r++)
            beside->critical[beside->criticals++] = r;
}

int a_run(Beside *beside)
{
    if (drawn(beside->draw) < CRITICAL)
        return beside->critical[below(beside->draw, beside->criticals)];
    return below(beside->draw, beside->net->clusters);
}

/* The longest path through a cluster on a device, between places `last` and `next` of its queue: one ends
   `sooner` seconds earlier, the other's tail is `less` seconds shorter. Several lanes ignore the queue. */
static double through(Beside *beside, int cluster, int d, int last, int next, double sooner, double less)
{
    const Network *net = beside->net;
    const double *found = reached(beside, cluster, d);
    double ready = found[0], after = found[1];
    int from = beside->queue_at[d];
    if (lanes_of(net, d) == 1) {
        if (last >= 0)
            ready = most(ready, beside->queue_ends[from + last] - sooner);
        if (from + next < beside->queue_at[d + 1])
            after = most(after, -beside->queue_tails[from + next] - less);
    }
    return ready + net->seconds[cluster * net->devices + d] + after;
}

int moved(Beside *beside, int cluster, double limit, Change *change)
{
    const Network *net = beside->net;
    const int *device = beside->now->device;
    int near = COUNT(net->near, cluster);
    int d = net->allowed.of[net->allowed.at[cluster] + below(beside->draw, COUNT(net->allowed, cluster))];
    if (near && drawn(beside->draw) < BESIDE)
        d = device[net->near.of[net->near.at[cluster] + below(beside->draw, near)]];
    if (d == device[cluster] || !is_allowed(net, cluster, d))
        return 0;
    double own = net->seconds[cluster * net->devices + d], low, high;
    const double *found = reached(beside, cluster, d);
    double ready = found[0], after = found[1];
    if (ready + own + after > limit)
        return 0;
    between(beside, cluster, &low, &high);
    int from = beside->queue_at[d], count = beside->queue_at[d + 1] - from;
    const double *keys = beside->queue_keys + from, *ends = beside->queue_ends + from;
    const double *tails_of = beside->queue_tails + from;
    int first = right_of(keys, count, low), last = left_of(keys, count, high);
    if (lanes_of(net, d) == 1) {
        int a = right_of(ends, count, ready), b = left_of(tails_of, count, -after);
        int near_ready = a < b ? a : b, near_after = a < b ? b : a;
        int begin = near_ready > first ? near_ready : first, end = near_after > first ? near_after : first;
        first = begin < last ? begin : last;
        last = end < last ? end : last;
    }
    int at = first + below(beside->draw, last - first + 1);
    if (at)
        low = most(low, keys[at - 1]);
    if (at < count)
        high = least(high, keys[at]);
    double length = through(beside, cluster, d, at - 1, at, 0.0, 0.0);
    if (length > limit)
        return 0;
    *change = (Change){
        .count = 1, .cluster = {cluster}, .device = {d}, .key = {inside(beside, low, high)}, .length = length};
    return 1;
}

int shifted(Beside *beside, int cluster, double limit, Change *change)
{
    const Network *net = beside->net;
    int clusters = net->clusters, d = beside->now->device[cluster];
    double was = beside->keys[cluster], low, high;
    between(beside, cluster, &low, &high);
    double far = drawn(beside->draw) < 0.7 ? 0.15 * clusters + 2 : clusters;
    double key = inside(beside, most(low, was - far), least(high, was + far));
    int from = beside->queue_at[d], count = beside->queue_at[d + 1] - from;
    const int *queue = beside->queue + from;
    int at = left_of(beside->queue_keys + from, count, key);
    if ((at && queue[at - 1] == cluster) || (at < count && queue[at] == cluster))
        return 0;
    double own = net->seconds[cluster * net->devices + d];
    double length = through(beside, cluster, d, at - 1, at, key > was ? own : 0.0, key < was ? own : 0.0);
    if (!(length < least(limit, beside->now->makespan * (1 - NEAR))))
        return 0;
    *change = (Change){.count = 1, .cluster = {cluster}, .device = {d}, .key = {key}, .length = length};
    return 1;
}

static double instead(Beside *beside, int cluster, int other, int d)
{
    int from = beside->queue_at[d], count = beside->queue_at[d + 1] - from;
    int at = left_of(beside->queue_keys + from, count, beside->keys[other]);
    return through(beside, cluster, d, at - 1, at + 1, 0.0, 0.0);
}

int exchanged(Beside *beside, int cluster, double limit, Change *change)
{
    const Network *net = beside->net;
    int d = beside->now->device[cluster];
    int e = net->allowed.of[net->allowed.at[cluster] + below(beside->draw, COUNT(net->allowed, cluster))];
    int from = beside->queue_at[e], count = beside->queue_at[e + 1] - from;
    if (d == e || !count)
        return 0;
    int at = right_of(beside->queue_ends + from, count, reached(beside, cluster, e)[0]);
    at += below(beside->draw, 2 * CLOSE + 1) - CLOSE;
    at = at < 0 ? 0 : at < count ? at : count - 1;
    int other = beside->queue[from + at];
    double own = beside->keys[cluster], its = beside->keys[other], low, high, floor, roof;
    between(beside, cluster, &low, &high);
    between(beside, other, &floor, &roof);
    if (!is_allowed(net, other, d) || !(low < its && its < high && floor < own && own < roof))
        return 0;
    double longest = most(instead(beside, cluster, other, e), instead(beside, other, cluster, d));
    if (longest > limit)
        return 0;
    *change = (Change){
        .count = 2, .cluster = {cluster, other}, .device = {e, d}, .key = {its, own}, .length = longest};
    return 1;
}

int gathered(Beside *beside, int cluster, int *device)
{
    const Network *net = beside->net;
    int source = beside->now->device[cluster], target = below(beside->draw, net->devices);
    int third = net->clusters / 3, most_of = third < GATHERED ? third : GATHERED, count = 1, edges = 1, size;
    if (third > GATHERED && drawn(beside->draw) < 0.5)
        size = (int)(2 * pow((third < FAR ? third : FAR) / 2.0, drawn(beside->draw)) + 0.5);
    else
        size = 2 + below(beside->draw, (most_of > 2 ? most_of : 2) - 1);
    int *edge = beside->edge, *found = beside->found;
    char *mark = beside->mark;
    edge[0] = found[0] = cluster;
    mark[cluster] = 1;
    while (edges) {
        int at = below(beside->draw, edges), r = edge[at];
        for (edges--; at < edges; at++)
            edge[at] = edge[at + 1];
        EACH(other, net->near, r)
            if (!mark[*other] && device[*other] == source && count < size) {
                mark[*other] = 1;
                found[count++] = edge[edges++] = *other;
            }
    }
    for (int i = 0; i < count; i++) {
        mark[found[i]] = 0;
        if (is_allowed(net, found[i], target))
            device[found[i]] = target;
    }
    return target != source;
}

int stretched(Beside *beside, int cluster, int *device)
{
    const Network *net = beside->net;
    int source = beside->now->device[cluster], target = below(beside->draw, net->devices);
    double length = 2 * pow(net->clusters / 2.0, drawn(beside->draw));
    double first = beside->keys[cluster] - length * drawn(beside->draw), how = drawn(beside->draw);
    for (int r = 0; r < net->clusters; r++)
        if (first <= beside->keys[r] && beside->keys[r] <= first + length) {
            if ((device[r] == source || how < 0.2) && is_allowed(net, r, target))
                device[r] = target;
            else if (device[r] == target && how > 0.6 && is_allowed(net, r, source))
                device[r] = source;
        }
    return target != source;
}

void still(const Beside *beside, const Timed *next, double *after)
{
    const Network *net = beside->net;
    const int *device = next->device;
    const double *keys = next->keys;
    const Timed *now = beside->now;
    double last = -1.0;
    for (int r = 0; r < net->clusters; r++)
        if (device[r] != now->device[r] || keys[r] != beside->keys[r])
            last = most(last, most(keys[r], beside->keys[r]));
    for (int r = 0; r < net->clusters; r++)
        after[r] = beside->keys[r] > last ? now->tail[r] : net->to_go[r * net->devices + device[r]];
}
