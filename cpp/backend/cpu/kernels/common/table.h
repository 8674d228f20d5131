// The kernels of one instruction set.
//
// A kernel `name` is two functions of its family's folder, compiled once per instruction set:
//     void name(const Args& args, const Frame& frame, const Worker& worker, int64_t begin,
//               int64_t end);
//     int64_t tasks(const Args& args, const Frame& frame);
// To add a kernel, write both and list it here.
#pragma once

#include "backend/cpu/kernels/common/frame.h"
#include "tensor/dtype_enum.h"

// X(kernel, type of its arguments, function that counts its tasks)
#define PLAIT_ATTENTION_KERNELS(X)                    \
    X(attend, AttendArgs, attend_tasks)               \
    X(attend_scores, AttendArgs, attend_tasks)        \
    X(attend_splits, AttendArgs, attend_splits_tasks) \
    X(hadamard, HadamardArgs, hadamard_tasks)         \
    X(rope, RopeArgs, rope_tasks)                     \
    X(rope_table, RopeTableArgs, rope_table_tasks)    \
    X(rotate_rows, RotateRowsArgs, rotate_rows_tasks) \
    X(store_rows, StoreRowsArgs, store_rows_tasks)    \
    X(temperature, TemperatureArgs, temperature_tasks)
#define PLAIT_PRODUCTS_KERNELS(X)                           \
    X(combine, CombineArgs, combine_tasks)                  \
    X(embed, EmbedArgs, embed_tasks)                        \
    X(expert_linear, ExpertLinearArgs, expert_linear_tasks) \
    X(head_linear, HeadLinearArgs, head_linear_tasks)       \
    X(linear, LinearArgs, linear_tasks)                     \
    X(mix, MixArgs, mix_tasks)                              \
    X(route, RouteArgs, route_tasks)
#define PLAIT_RECURRENCE_KERNELS(X)                            \
    X(delta_rule, DeltaRuleArgs, delta_rule_tasks)             \
    X(selective_scan, SelectiveScanArgs, selective_scan_tasks) \
    X(short_conv, ShortConvArgs, short_conv_tasks)             \
    X(ssd_scan, SsdScanArgs, ssd_scan_tasks)                   \
    X(token_shift, TokenShiftArgs, token_shift_tasks)          \
    X(wkv6, Wkv6Args, wkv6_tasks)                              \
    X(wkv7, Wkv7Args, wkv7_tasks)
#define PLAIT_ROWS_KERNELS(X)                               \
    X(concat, ConcatArgs, concat_tasks)                     \
    X(copy_rows, CopyRowsArgs, copy_rows_tasks)             \
    X(edit_rows, EditRowsArgs, edit_rows_tasks)             \
    X(quantize_rows, QuantizeRowsArgs, quantize_rows_tasks) \
    X(round_rows, RoundRowsArgs, round_rows_tasks)          \
    X(select_rows, SelectRowsArgs, select_rows_tasks)       \
    X(slice, SliceArgs, slice_tasks)
#define PLAIT_ELEMENTWISE_KERNELS(X)                        \
    X(activate, ElementwiseArgs, elementwise_tasks)         \
    X(add, ElementwiseArgs, elementwise_tasks)              \
    X(clamp, ElementwiseArgs, elementwise_tasks)            \
    X(clamped_swiglu, ElementwiseArgs, elementwise_tasks)   \
    X(gate, ElementwiseArgs, elementwise_tasks)             \
    X(gate_quantize, GateQuantizeArgs, gate_quantize_tasks) \
    X(mul, ElementwiseArgs, elementwise_tasks)              \
    X(scale, ElementwiseArgs, elementwise_tasks)            \
    X(softcap, ElementwiseArgs, elementwise_tasks)          \
    X(sub, ElementwiseArgs, elementwise_tasks)
#define PLAIT_NORMS_KERNELS(X)             \
    X(l2_norm, NormArgs, norm_tasks)       \
    X(layer_norm, NormArgs, norm_tasks)    \
    X(norm_quantize, NormArgs, norm_tasks) \
    X(rms_norm, NormArgs, norm_tasks)      \
    X(row_sum, NormArgs, norm_tasks)
#define PLAIT_KERNELS(X)         \
    PLAIT_ATTENTION_KERNELS(X)   \
    PLAIT_PRODUCTS_KERNELS(X)    \
    PLAIT_RECURRENCE_KERNELS(X)  \
    PLAIT_ROWS_KERNELS(X)        \
    PLAIT_ELEMENTWISE_KERNELS(X) \
    PLAIT_NORMS_KERNELS(X)

namespace plait::cpu {

#define PLAIT_DECLARE(name, Args, tasks) struct Args;
PLAIT_KERNELS(PLAIT_DECLARE)
#undef PLAIT_DECLARE

struct TileProduct;

// Each instruction set that is compiled in defines `const Kernels& kernels()` in its namespace.
struct Kernels {
#define PLAIT_MEMBER(name, Args, tasks) KernelOf<Args> name;
    PLAIT_KERNELS(PLAIT_MEMBER)
#undef PLAIT_MEMBER
    // Returns the product in tiles with weights of a type, or null. May be null itself.
    const TileProduct* (*tiles)(DType weights) = nullptr;
};

}  // namespace plait::cpu
