// Facts about a model and a context that a saved state depends on. Each has a name, so that an
// error can report the one that differs.
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

// An adapter or control vector that was active when a state was saved. Cached values depend on it.
struct ActiveChange {
    std::string identity;  // "LoRA 'pirate' of digest ..."
    float scale = 1.0f;
    friend bool operator==(const ActiveChange&, const ActiveChange&) = default;
};

// Facts of a model file: the architecture, its hyperparameters, the tensor directory, and a sample
// of the tensor bytes. Models that differ only in other bytes are treated as identical.
Facts facts_of(const gguf::File& file);

// Context options that saved states depend on.
struct CacheSettings {
    BuildOptions build;
    bool causal = true;
    bool swa_full = false;
};
// Facts of a context: the type and shape of each storage, the rotation of keys, causality, and
// whether rows outside of windows are freed.
Facts facts_of(const Model& model, const MemoryLayout& layout, const CacheSettings& settings);

// Throws StateError with the first fact of `state` that differs from `here`.
void check_facts(const Facts& state, const Facts& here);

}  // namespace plait
