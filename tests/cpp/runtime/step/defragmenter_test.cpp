#include "runtime/step/defragmenter.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "batch/batch.h"
#include "runtime/context.h"
#include "runtime/devices/backend_registry.h"
#include "support/bytes_of.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

// Bytes that the host read from the memory of a device, and wrote to it.
struct Transfers {
    uint64_t read = 0, written = 0;
};

class CountingBuffer final : public Buffer {
public:
    CountingBuffer(std::unique_ptr<Buffer> buffer, Transfers& transfers)
        : buffer_(std::move(buffer)), transfers_(transfers) {}
    uint64_t bytes() const override { return buffer_->bytes(); }
    void write(uint64_t offset, std::span<const std::byte> source) override {
        transfers_.written += source.size();
        buffer_->write(offset, source);
    }
    void read(uint64_t offset, std::span<std::byte> target) const override {
        transfers_.read += target.size();
        buffer_->read(offset, target);
    }
    std::byte* host() override { return buffer_->host(); }
    uint64_t address() const override { return buffer_->address(); }

private:
    std::unique_ptr<Buffer> buffer_;
    Transfers& transfers_;
};

// A device with the kernels of the CPU. Transfers of caches and arenas are counted, those of inputs are not.
class CountingBackend final : public Backend {
public:
    explicit CountingBackend(Transfers& transfers) : transfers_(transfers) {}
    std::string_view name() const override { return "counting:0"; }
    std::string packing() const override { return "counting"; }
    int n_threads() const override { return 1; }
    std::unique_ptr<Buffer> allocate(uint64_t bytes) override {
        return std::make_unique<CountingBuffer>(cpu_.allocate(bytes), transfers_);
    }
    std::unique_ptr<Buffer> allocate_inputs(uint64_t bytes) override {
        return cpu_.allocate(bytes);
    }
    std::shared_ptr<WeightStore> make_weight_store(
        std::shared_ptr<const WeightSource> source) override {
        return cpu_.make_weight_store(std::move(source));
    }
    bool supports(const Graph& graph, NodeId node) const override {
        return cpu_.supports(graph, node);
    }
    std::unique_ptr<LoweredGraph> lower(Graph graph, bool fuse) override {
        return cpu_.lower(std::move(graph), fuse);
    }

private:
    cpu::CpuBackend cpu_{{.threads = 1, .isa = {}}};
    Transfers& transfers_;
};

Batch tokens_of(SequenceId sequence, int n) {
    Batch batch;
    for (int i = 0; i < n; ++i) batch.add(3 + i, {}, std::span(&sequence, 1), false);
    return batch;
}

TEST(Defragmentation, MovesRowsWithoutTheHost) {  // S3-25
    static Transfers transfers;
    register_backend({.name = "counting",
                      .devices = [] { return std::vector<DeviceInfo>{{.name = "counting:0"}}; },
                      .make = [](size_t) -> std::unique_ptr<Backend> {
                          return std::make_unique<CountingBackend>(transfers);
                      }});
    for (const char* kv : {"unified", "streams"}) {
        ContextOptions options;
        options.n_ctx = 128;
        options.n_seq_max = 2;
        options.kv = kv;
        options.backend = "counting";
        options.layers.n_gpu_layers = -1;
        Context context(test::TinyModel{}.open(), options);
        for (const SequenceId s : {0, 1}) context.session()->decode(tokens_of(s, 60).view());
        context.session()->seq_rm(0, {.begin = 5, .end = 20});
        context.session()->seq_rm(1, {.begin = 30, .end = 31});
        transfers = {};
        const DefragReport report = context.session()->defrag({});
        EXPECT_GT(report.cells, 0) << kv;
        EXPECT_EQ(transfers.read, 0u) << kv;
        EXPECT_EQ(transfers.written, 0u) << kv;
        test::bytes_of(context);  // reads the cache, which is counted
        EXPECT_GT(transfers.read, 0u) << kv;
    }
}

TEST(Fragmentation, IsTheShareOfStepsCausedByShortRuns) {  // S3-31
    const auto of = [](int64_t keys, int64_t runs, int64_t fewest) {
        return fragmentation({.n_keys = keys, .n_runs = runs, .min_runs = fewest});
    };
    EXPECT_EQ(of(0, 0, 0), 0);
    EXPECT_EQ(of(255, 255, 1), 0) << "small contexts never count";
    EXPECT_EQ(of(4096, 1, 1), 0);
    EXPECT_EQ(of(4096, 128, 1), 0) << "runs as long as a step cost no extra steps";
    EXPECT_EQ(of(4096, 256, 1), 0.5);
    EXPECT_EQ(of(4096, 4096, 1), 1 - 1 / 32.0);
    EXPECT_EQ(of(4096, 4096, 4096), 0) << "runs that cannot be merged do not count";
    EXPECT_EQ(of(4096, 1024, 512), 0.5);
}

}  // namespace
}  // namespace plait
