// Which layers of a model are computed on which device: as many as the caller says, or as fit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/device_set.h"
#include "memory/layout.h"
#include "model/model.h"
#include "plan/input_layout.h"

namespace plait {

// Everything that a model computes in a context, in the kinds of graphs that its steps can have.
// `step`: the key of the largest step.
std::vector<Graph> graphs_of(const Model& model, const PlanKey& step, const MemoryLayout& layout,
                             const BuildOptions& options);

// What a caller wants of devices other than the CPU, which `split` is the shares of; empty: as much
// as each has room.
struct LayerOptions {
    std::optional<int64_t> n_gpu_layers;  // nothing: those that fit; -1: all
    std::vector<double> split;
};

// The layers in their order, the output as the last one: the device of each. Those from the last
// on are on a device, and the first on the CPU, whose number is room.size().
//
// `bytes`: of each layer; `room`: that each device has for them. Device i begins where
// split[0] + ... + split[i - 1] of the layers are passed.
std::vector<uint8_t> place(std::span<const uint64_t> bytes, std::span<const uint64_t> room,
                           const LayerOptions& options);

// The same for a model. `devices`: the CPU last. A layer whose cache its device lacks a kernel for
// has that on the CPU. UnsupportedError, naming operation, type and device, for what no device
// computes.
LayerDevices place_layers(const ModelInfo& info, std::span<const Graph> graphs,
                          const MemoryLayout& layout,
                          std::span<const std::unique_ptr<Backend>> devices,
                          const InputLayout& inputs, const LayerOptions& options);

// The devices as one backend. Those without a layer are left out, all but the CPU.
DeviceSet join(std::vector<std::unique_ptr<Backend>> devices, LayerDevices placed);

}  // namespace plait
