// The declarations that every op contains, and functions that work for all ops by means of them.
//
//   struct RmsNorm {
//       Operand x;
//       OptionalOperand weight;
//       float epsilon;
//       static constexpr OpInfo kInfo{.name = "rms_norm", .row_wise = true};
//       static constexpr auto kOperands = operands(&RmsNorm::x, &RmsNorm::weight);
//       bool operator==(const RmsNorm&) const = default;
//   };
//
// Renumbering, pruning, staging, printing and every other pass read kInfo and kOperands, so an op
// that declares both needs no change in any of them.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <variant>

#include "graph/value.h"

namespace plait {

enum class OpKind : uint8_t {
    source,  // exists before a step: a weight, a cache, an input
    view,    // refers to bytes of its first operand; nothing is computed
    kernel,  // a backend computes it
    host,    // written by the host between two executables
};

struct OpInfo {
    const char* name;
    OpKind kind = OpKind::kernel;
    // Row i of the result depends on no other row of the operands that have the result's extent.
    // The op can then be computed for some rows only.
    bool row_wise = false;
    // Changes a cache, so it runs even if no node reads its result.
    bool writes_storage = false;
    // The result is the first operand after the op has changed it.
    bool in_place = false;
    // Names of the ops that a fused op replaces.
    std::array<const char*, 2> fused{};
};

// Returns true if the bytes of the result are those of the first operand, or a part of them.
constexpr bool is_alias(const OpInfo& info) { return info.kind == OpKind::view || info.in_place; }

// The list of an op's operands, each a pointer to a member: an Operand, an OptionalOperand, or a
// struct that has kOperands of its own.
template <typename... Members>
constexpr auto operands(Members... members) {
    return std::tuple(members...);
}

template <typename T>
concept HasOperands = requires {
    std::tuple_size<std::remove_cv_t<decltype(T::kOperands)>>();
};

template <typename T>
concept OpType = HasOperands<T> && std::equality_comparable<T> && std::is_trivially_copyable_v<T> &&
                 std::same_as<decltype(T::kInfo), const OpInfo> &&
                 (!is_alias(T::kInfo) ||
                  std::tuple_size_v<std::remove_cv_t<decltype(T::kOperands)>> > 0) &&
                 (T::kInfo.kind != OpKind::source ||
                  std::tuple_size_v<std::remove_cv_t<decltype(T::kOperands)>> == 0);

// Calls visit(NodeId&) for each operand that is present, in the order of kOperands; for a const op,
// visit(const NodeId&).
template <typename T, typename Visit>
requires HasOperands<std::remove_const_t<T>> || std::same_as<std::remove_const_t<T>, Operand> ||
    std::same_as<std::remove_const_t<T>, OptionalOperand>
constexpr void visit_operands(T& op, Visit&& visit) {
    using Plain = std::remove_const_t<T>;
    if constexpr (std::same_as<Plain, Operand> || std::same_as<Plain, OptionalOperand>) {
        if (op.id != kNoNode) visit(op.id);
    } else {
        std::apply([&](auto... members) { (visit_operands(op.*members, visit), ...); },
                   Plain::kOperands);
    }
}

template <OpType... Ops, typename Visit>
void for_each_operand(const std::variant<Ops...>& op, Visit&& visit) {
    std::visit(
        [&](const auto& each) { visit_operands(each, [&](const NodeId& id) { visit(id); }); }, op);
}

// Replaces each operand `id` by map(id).
template <OpType... Ops, typename Map>
void map_operands(std::variant<Ops...>& op, Map&& map) {
    std::visit([&](auto& each) { visit_operands(each, [&](NodeId& id) { id = map(id); }); }, op);
}

template <OpType... Ops>
const OpInfo& info_of(const std::variant<Ops...>& op) {
    return std::visit([]<typename T>(const T&) -> const OpInfo& { return T::kInfo; }, op);
}

// Returns the operand whose bytes an alias refers to; nullopt for any other op.
template <OpType... Ops>
NodeId aliased_operand(const std::variant<Ops...>& op) {
    return std::visit(
        []<typename T>(const T& each) -> NodeId {
            if constexpr (is_alias(T::kInfo)) return (each.*std::get<0>(T::kOperands)).id;
            return kNoNode;
        },
        op);
}

}  // namespace plait
