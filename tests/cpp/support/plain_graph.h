// A lowered graph whose ops are those of the model, for tests of planning.
#pragma once

#include "backend/backend.h"

namespace plait::test {

class PlainGraph final : public LoweredGraph {
public:
    explicit PlainGraph(const Graph& graph)
        : LoweredGraph(graph.nodes(), {graph.outputs().begin(), graph.outputs().end()}) {}

    std::unique_ptr<Executable> compile(const Segment&) override { return nullptr; }
};

}  // namespace plait::test
