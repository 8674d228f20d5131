// Every CPU kernel, one line each. A kernel `name` is two functions in kernels/name.cpp, compiled
// once per instruction set:  void name(args, frame, worker, begin, end)  and
// int64_t name_tasks(args, frame).
#pragma once

#define PLAIT_KERNELS(X) \
    X(add)               \
    X(activate)          \
    X(attend)            \
    X(attend_scores)     \
    X(attend_splits)     \
    X(clamped_swiglu)    \
    X(combine)           \
    X(concat)            \
    X(copy_rows)         \
    X(delta_rule)        \
    X(embed)             \
    X(expert_linear)     \
    X(gate)              \
    X(gate_quantize)     \
    X(head_linear)       \
    X(l2_norm)           \
    X(layer_norm)        \
    X(linear)            \
    X(mul)               \
    X(norm_quantize)     \
    X(quantize_rows)     \
    X(rms_norm)          \
    X(rope)              \
    X(rope_table)        \
    X(rotate_rows)       \
    X(route)             \
    X(row_sum)           \
    X(scale)             \
    X(select_rows)       \
    X(selective_scan)    \
    X(short_conv)        \
    X(slice)             \
    X(softcap)           \
    X(ssd_scan)          \
    X(store_rows)        \
    X(sub)               \
    X(token_shift)       \
    X(wkv6)              \
    X(wkv7)
