// The assignment of a model's layers to devices: as many as the caller requests, or as many as fit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/device_set.h"
#include "memory/layout.h"
#include "model/model.h"
#include "plan/buffers.h"

namespace plait {

// Max rows per run of a copy_rows or shift_keys plan.
inline constexpr uint32_t kMaxMovesPerRun = 1024;

// One graph of each kind that a context can run. `step`: the key of the largest step.
std::vector<Graph> graphs_of(const Model& model, const PlanKey& step, const MemoryLayout& layout,
                             const BuildOptions& options);

struct LayerOptions {
    std::optional<int64_t> n_gpu_layers;  // nullopt: as many as fit; -1: all
    std::vector<double> split;  // the share of each device but the CPU; empty: by free memory
};

// Returns the device index of each layer; the output layer comes last. The leading layers go to the
// CPU, whose index is room.size(), the trailing ones to devices.
//
// `bytes`: per layer. `room`: bytes for layers per device. Device i starts at the fraction
// (split[0] + ... + split[i - 1]) / sum(split) of the layers that are not on the CPU.
std::vector<uint8_t> place(std::span<const uint64_t> bytes, std::span<const uint64_t> room,
                           const LayerOptions& options);

// The same for a model. `devices`: the CPU is the last one. The cache of a layer goes to the CPU if
// the device of the layer lacks a kernel that accesses it. If no device can compute a node, throws
// UnsupportedError with the op, its type and the device.
LayerDevices place_layers(const ModelInfo& info, std::span<const Graph> graphs,
                          const MemoryLayout& layout,
                          std::span<const std::unique_ptr<Backend>> devices,
                          const InputLayout& inputs, const LayerOptions& options);

// The devices that have a layer, and the CPU.
DeviceSet join(std::vector<std::unique_ptr<Backend>> devices, LayerDevices placed);

}  // namespace plait
