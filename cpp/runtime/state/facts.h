// What a saved state was made with, fact by fact, so that an error can name the one that differs.
#pragma once

#include <string>
#include <vector>

#include "gguf/reader.h"
#include "memory/layout.h"
#include "model/model.h"

namespace plait {

struct Fact {
    std::string name;
    std::string value;
    friend bool operator==(const Fact&, const Fact&) = default;
};
using Facts = std::vector<Fact>;

// The file: architecture, its hyperparameters, the directory of tensors, and a sample of their
// bytes. A sample: two models that differ only in bytes that it does not see pass for one.
Facts facts_of(const gguf::File& file);

// How a context keeps what it remembers: the type and shape of every layer's rows, how keys are
// rotated, which tokens see which, and whether windows give rows back.
struct Keeping {
    BuildOptions build;
    bool causal = true;
    bool swa_full = false;
};
Facts facts_of(const Model& model, const MemoryLayout& layout, const Keeping& how);

// StateError naming the first fact of the state that is not as it is here.
void check_facts(const Facts& state, const Facts& here);

}  // namespace plait
