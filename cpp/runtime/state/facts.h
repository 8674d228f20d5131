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

// Options of a context that its saved states depend on.
struct CacheSettings {
    BuildOptions build;
    bool causal = true;
    bool swa_full = false;
};
// How a context stores its rows: the type and shape of each storage, how keys are rotated, causality
// and whether windows free rows.
Facts facts_of(const Model& model, const MemoryLayout& layout, const CacheSettings& settings);

// StateError naming the first fact of the state that is not as it is here.
void check_facts(const Facts& state, const Facts& here);

}  // namespace plait
