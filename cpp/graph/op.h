// Every op that a graph can have.
#pragma once

#include <variant>

#include "graph/op_info.h"
#include "graph/ops/attention.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/linear.h"
#include "graph/ops/norm.h"
#include "graph/ops/recurrence.h"
#include "graph/ops/rotary.h"
#include "graph/ops/routing.h"
#include "graph/ops/rows.h"
#include "graph/ops/sources.h"

namespace plait {

using Op =
    std::variant<ops::Weight, ops::Storage, ops::Input, ops::Reshape, ops::WeightRow, ops::Edit,
                 ops::Send, ops::Receive, ops::Embed, ops::SelectRows, ops::StoreRows,
                 ops::CopyRows, ops::EditRows, ops::RmsNorm, ops::LayerNorm, ops::L2Norm,
                 ops::RowSum, ops::Linear, ops::LinearAdd, ops::HeadLinear, ops::Mix,
                 ops::RopeTable, ops::Rope, ops::Hadamard, ops::RotateRows, ops::Attend,
                 ops::Temperature, ops::Add, ops::Sub, ops::Mul, ops::Scale, ops::Softcap,
                 ops::Clamp, ops::Activate, ops::Gate, ops::ClampedSwiglu, ops::Slice, ops::Concat,
                 ops::Route, ops::ExpertLinear, ops::Combine, ops::ShortConv, ops::TokenShift,
                 ops::SelectiveScan, ops::SsdScan, ops::Wkv6, ops::Wkv7, ops::DeltaRule>;

template <typename Variant>
inline constexpr bool all_are_ops = false;
template <typename... Ops>
inline constexpr bool all_are_ops<std::variant<Ops...>> = (OpType<Ops> && ...);
static_assert(all_are_ops<Op>, "an op declares kInfo, kOperands and operator==; see op_info.h");

inline const char* op_name(const Op& op) { return info_of(op).name; }  // "rms_norm"
inline bool writes_storage(const Op& op) { return info_of(op).writes_storage; }

}  // namespace plait
