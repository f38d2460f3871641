/* Duplicates, clusters of a list that are computed on several devices, and changes of these. */

#include "core.h"

#include <string.h>

/* Shares of the changes, if there are duplicates, that remove one or exchange it with its original. */
#define FEWER 0.25
#define SWAPPED 0.25
#define ELSEWHERE 0.5 /* how often the cluster whose inputs are duplicated goes to another device */
#define ONWARD 0.5    /* how often the next duplicate is made for the last one */
#define ENOUGH 0.2    /* how often there is no next one */

void look_up(const Network *net, Timed *timed)
{
    memset(timed->copied, 0, net->clusters + 1);
    for (int i = 0; i < timed->copies; i++) {
        int cluster = timed->of[i], copy = net->clusters + 1 + i, *own = timed->copy_at + cluster * net->devices;
        if (!timed->copied[cluster]) {
            timed->copied[cluster] = 1;
            memset(own, 0, net->devices * sizeof *own);
        }
        own[timed->device[copy]] = copy;
    }
}

static void leave_out(const Network *net, Timed *timed, int i)
{
    int copy = net->clusters + 1 + i, left = --timed->copies - i;
    memmove(timed->of + i, timed->of + i + 1, left * sizeof *timed->of);
    memmove(timed->device + copy, timed->device + copy + 1, left * sizeof *timed->device);
    memmove(timed->keys + copy, timed->keys + copy + 1, left * sizeof *timed->keys);
    look_up(net, timed);
}

static int is_read(const Network *net, const Timed *timed, int cluster, int device)
{
    EACH(v, net->makes, cluster) {
        EACH(d, net->deliver, *v)
            if (*d == device)
                return 1;
        EACH(r, net->readers, *v)
            EACH_OF(reader, net, timed, *r)
                if (timed->device[reader] == device)
                    return 1;
    }
    return 0;
}

void tidy(const Network *net, Timed *timed)
{
    look_up(net, timed);
    for (int i = timed->copies - 1; i >= 0; i--) {
        int cluster = timed->of[i], device = timed->device[net->clusters + 1 + i];
        if (timed->device[cluster] == device || !is_read(net, timed, cluster, device)) {
            leave_out(net, timed, i);
            i = timed->copies;
        }
    }
}

static int could_be(const Network *net, const Timed *timed, int maker, int device)
{
    return maker >= 0 && net->repeatable[maker] && timed->device[maker] != device &&
           !copy_on(net, timed, maker, device) && net->seconds[maker * net->devices + device] < INFINITY;
}

/* Draw a cluster that makes an input of a cluster on a device and could be computed there too; -1 if none. */
static int awaited(Beside *beside, const Timed *timed, int cluster, int device)
{
    const Network *net = beside->net;
    int count = 0;
    EACH(v, net->reads, cluster) count += could_be(net, timed, net->maker[*v], device);
    int at = count ? below(beside->draw, count) : -1;
    EACH(v, net->reads, cluster)
        if (could_be(net, timed, net->maker[*v], device) && !at--)
            return net->maker[*v];
    return -1;
}

static void change_places(const Network *net, Timed *timed, int i)
{
    int cluster = timed->of[i], copy = net->clusters + 1 + i, device = timed->device[cluster];
    double key = timed->keys[cluster];
    timed->device[cluster] = timed->device[copy];
    timed->keys[cluster] = timed->keys[copy];
    timed->device[copy] = device;
    timed->keys[copy] = key;
}

int recopied(Beside *beside, Timed *next)
{
    const Network *net = beside->net;
    double what = drawn(beside->draw);
    if (next->copies && what < FEWER + SWAPPED) {
        int i = below(beside->draw, next->copies);
        if (what < FEWER)
            leave_out(net, next, i);
        else
            change_places(net, next, i);
        return 1;
    }
    int cluster = a_run(beside), device = next->device[cluster], first = next->copies, moved = 0;
    double high = beside->keys[cluster];
    if (drawn(beside->draw) < ELSEWHERE) {
        int d = net->allowed.of[net->allowed.at[cluster] + below(beside->draw, COUNT(net->allowed, cluster))];
        moved = d != device;
        next->device[cluster] = device = d;
    }
    while (next->copies < net->most_copies) {
        int maker = awaited(beside, next, cluster, device);
        if (maker < 0)
            break;
        double low = -1.0;
        EACH(r, net->before, maker) {
            int copy = copy_on(net, next, *r, device);
            low = most(low, next->keys[copy ? copy : *r]);
        }
        int copy = net->clusters + 1 + next->copies;
        next->of[next->copies++] = maker;
        next->device[copy] = device;
        if (low > high)
            low = high - 1.0;
        next->keys[copy] = inside(beside, low, high);
        look_up(net, next);
        if (drawn(beside->draw) < ONWARD) {
            cluster = maker;
            high = next->keys[copy];
        }
        if (drawn(beside->draw) < ENOUGH)
            break;
    }
    return moved || next->copies > first;
}
