// The instruction sets of this build and of this machine, and the choice among them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/simd/isa_table.h"

namespace plait::cpu {

struct Kernels;  // kernels/common/table.h

// A row of kIsas.
using Isa = const IsaInfo*;

inline std::string_view to_string(Isa isa) { return isa->name; }
// Null if no row has that name.
Isa isa_from_name(std::string_view name);

// Return the instruction sets that were compiled in, and those of them that this machine supports.
// The most preferred comes last; the first is always "scalar".
std::vector<Isa> built_isas();
std::vector<Isa> available_isas();
// Every name of the table, separated by commas.
std::string isa_names();

// Returns the most preferred available instruction set. "blas" counts only where the build has no
// kernels for the kind of processor.
Isa default_isa();
// Returns the less preferred one of `limit` and the environment variable PLAIT_ISA, or
// default_isa() if there is neither. Throws BackendError if one of them is unknown or not available,
// and UnsupportedError if it requires OpenBLAS, which is not available.
Isa choose_isa(std::optional<std::string_view> limit);

// True on AMD processors, which read one or several streams of memory faster without prefetches
// than with them. Intel processors do not (docs/decisions/0055 and 0057).
bool reads_streams_ahead();

// Requires `isa` to be built.
const Kernels& kernels(Isa isa);

}  // namespace plait::cpu
