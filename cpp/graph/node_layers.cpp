#include "graph/node_layers.h"

namespace plait {

std::vector<size_t> node_layers(const Graph& graph, size_t n_layers) {
    std::vector<size_t> layers(graph.nodes().size());
    size_t layer = n_layers;
    for (size_t i = layers.size(); i-- > 0;) {
        const int16_t named = graph.nodes()[i].layer;
        if (named >= 0 && static_cast<size_t>(named) < n_layers) layer = static_cast<size_t>(named);
        layers[i] = layer;
    }
    return layers;
}

}  // namespace plait
