// The states that a recurrent node goes on from; shaders/lib/states.glsl reads the same bytes.
#pragma once

#include "backend/vulkan/ops/operands.h"

namespace plait::vulkan {

struct States {
    Ref storage;                // [rows, elements] f32
    Ref read_rows, write_rows;  // [sequences] i32
    Ref token_begin;            // [sequences + 1] i32
    uint32_t elements = 0;      // of a row
    uint32_t padding = 0;
};

// A node's last four inputs.
States states_of(const Node& node, Binder& binder);

// A workgroup for each of so many sequences as a step has.
inline Axis sequences_axis() { return {Rows{kSequences, 0}, 1, 1}; }

// Dispatches shaders that lib/scan.glsl takes through a sequence: a state [rows, columns] a head.
template <typename Args>
void scan_step(const Node& node, std::string_view shader, uint32_t rows, const Args& args,
               Binder& binder) {
    const uint32_t tiles = args.heads * ((args.columns + 31) / 32);
    binder.step(node, shader, {rows}, {fixed_axis(tiles), sequences_axis()}, args);
}

}  // namespace plait::vulkan
