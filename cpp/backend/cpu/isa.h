// Instruction sets of the CPU backend and the choice among them at run time.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "backend/cpu/kernels/table.h"

namespace plait::cpu {

// avx512: F BW VL DQ VNNI BF16. amx: tiles of 8-bit integers beside it, for products of many rows
// with block types; the bits are those of avx512, but for BF16 weights.
enum class Isa { scalar, avx2, avx512, amx };

std::string_view to_string(Isa isa);
std::optional<Isa> isa_from_name(std::string_view name);

// What this build has and this machine runs, weakest first.
std::vector<Isa> available_isas();
// The strongest available one that is at most `most` and at most the environment variable
// PLAIT_ISA. BackendError when either names one the machine lacks, or nothing known.
Isa choose_isa(std::optional<std::string_view> most);

const Kernels& kernels(Isa isa);

}  // namespace plait::cpu
