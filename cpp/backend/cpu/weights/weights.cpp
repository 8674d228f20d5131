#include "backend/cpu/weights/weights.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "platform/file.h"
#include "platform/memory.h"
#include "tensor/convert.h"

namespace plait::cpu {
namespace {

// Bytes of the model's file that a thread reads at once. They and their panels stay in the second
// level cache.
constexpr uint64_t kReadBytes = uint64_t{512} << 10;

// Packs the panels of all matrices of a weight on several threads, which take slices of them. The
// panels go to memory or, if `target` is null, to `write`.
class PanelPacker {
public:
    PanelPacker(const WeightSource& source, WeightId id, const PackedWeight& weight,
                std::byte* target, const PackedFile::WriteAt& write)
        : source_(source),
          id_(id),
          weight_(weight),
          target_(target),
          write_(write),
          panel_bytes_(static_cast<uint64_t>(weight.panel_bytes)),
          row_bytes_(row_bytes(source.type(id).dtype, static_cast<uint64_t>(weight.columns))),
          read_panels_(std::max<uint64_t>(
              1, kReadBytes /
                     std::max<uint64_t>(1, row_bytes_ * static_cast<uint64_t>(weight.lanes)))),
          slice_bytes_(target ? std::max<uint64_t>(1, read_panels_ * panel_bytes_)
                              : platform::kHugePageBytes),
          bytes_(packed_bytes(weight)) {}

    uint64_t count_slices() const { return (bytes_ + slice_bytes_ - 1) / slice_bytes_; }

    // Packs until no slice is left. Called on each thread; the first exception stops all of them.
    void work() noexcept {
        try {
            std::vector<std::byte> rows, panels;
            while (!failed_) {
                const uint64_t begin = next_.fetch_add(slice_bytes_);
                if (begin >= bytes_) return;
                pack_slice(begin, std::min(bytes_, begin + slice_bytes_), rows, panels);
            }
        } catch (...) {
            if (!failed_.exchange(true)) failure_ = std::current_exception();
        }
    }
    void rethrow() const {
        if (failure_) std::rethrow_exception(failure_);
    }

private:
    int64_t rows_of(int64_t panel) const {
        const int64_t first = panel % weight_.panels() * weight_.lanes;
        return std::min<int64_t>(weight_.lanes, weight_.rows - first);
    }
    // The first row of a panel, counted over all matrices of the file.
    int64_t first_row(int64_t panel) const {
        return panel / weight_.panels() * weight_.rows + panel % weight_.panels() * weight_.lanes;
    }

    // Packs bytes [begin, end) of the weight. A slice of a file may begin and end within panels,
    // which are then packed for both slices.
    void pack_slice(uint64_t begin, uint64_t end, std::vector<std::byte>& rows,
                    std::vector<std::byte>& panels) {
        const uint64_t first = begin / panel_bytes_;
        const uint64_t last = (end + panel_bytes_ - 1) / panel_bytes_;
        if (!target_) panels.resize((last - first) * panel_bytes_);
        std::byte* to = target_ ? target_ + begin : panels.data();
        for (uint64_t panel = first; panel < last; panel += read_panels_) {
            const uint64_t stop = std::min(last, panel + read_panels_);
            pack_panels(static_cast<int64_t>(panel), static_cast<int64_t>(stop), rows,
                        to + (panel - first) * panel_bytes_);
        }
        if (!target_)
            write_(begin, std::span(panels).subspan(begin - first * panel_bytes_, end - begin));
    }

    void pack_panels(int64_t begin, int64_t end, std::vector<std::byte>& rows, std::byte* to) {
        const int64_t first = first_row(begin);
        const int64_t n = first_row(end - 1) + rows_of(end - 1) - first;
        rows.resize(static_cast<uint64_t>(n) * row_bytes_);
        source_.read(id_, static_cast<uint64_t>(first) * row_bytes_, rows);
        for (int64_t panel = begin; panel < end; ++panel, to += panel_bytes_) {
            // Missing rows are zeros, not rows of an earlier slice.
            if (rows_of(panel) < weight_.lanes) std::memset(to, 0, panel_bytes_);
            const auto from = static_cast<uint64_t>(first_row(panel) - first) * row_bytes_;
            pack_panel(
                weight_,
                std::span(rows).subspan(from, static_cast<uint64_t>(rows_of(panel)) * row_bytes_),
                to);
        }
    }

    const WeightSource& source_;
    WeightId id_;
    const PackedWeight& weight_;
    std::byte* target_;
    const PackedFile::WriteAt& write_;
    uint64_t panel_bytes_, row_bytes_;
    uint64_t read_panels_, slice_bytes_;
    uint64_t bytes_;
    std::atomic<uint64_t> next_{0};
    std::atomic<bool> failed_{false};
    std::exception_ptr failure_;
};

// Packs a weight into memory or, if `target` is null, into a file.
void pack(const WeightSource& source, WeightId id, const PackedWeight& layout, int threads,
          std::byte* target, const PackedFile::WriteAt& write = {}) {
    PanelPacker packer(source, id, layout, target, write);
    std::vector<std::jthread> others;
    const auto slices = static_cast<int64_t>(packer.count_slices());
    const int64_t wanted = std::min<int64_t>(threads, slices) - 1;
    try {
        for (int64_t i = 0; i < wanted; ++i) others.emplace_back([&packer] { packer.work(); });
    } catch (const std::system_error&) {
        // The threads that could be started do all of the work.
    }
    packer.work();
    others.clear();
    packer.rethrow();
}

// The bytes of each weight as a packed matrix; 0 if it cannot be one.
std::vector<uint64_t> sizes_of(const WeightSource& source, Isa isa) {
    std::vector<uint64_t> bytes(source.count());
    for (WeightId id = 0; id < bytes.size(); ++id) {
        const TensorType& type = source.type(id);
        if (type.dtype != DType::i32 && type.shape.rank > 0 && type.shape.rank <= 3)
            bytes[id] = packed_bytes(packed_layout(type, isa));
    }
    return bytes;
}

}  // namespace

CpuWeights::CpuWeights(std::shared_ptr<const WeightSource> source, Isa isa)
    : source_(std::move(source)),
      isa_(isa),
      matrices_(source_->count()),
      vectors_(source_->count()) {}

CpuWeights::~CpuWeights() = default;

uint64_t CpuWeights::bytes() const { return bytes_; }

const PackedWeight& CpuWeights::matrix(WeightId id, int threads) {
    PLAIT_CHECK(id < matrices_.size());
    const std::lock_guard lock(mutex_);
    if (!matrices_[id]) matrices_[id] = std::make_unique<Matrix>();
    Matrix& matrix = *matrices_[id];
    if (!matrix.packed.data) load(id, matrix, threads);
    return matrix.packed;
}

// If packing fails, the weight keeps its memory for the next request.
void CpuWeights::load(WeightId id, Matrix& matrix, int threads) {
    matrix.packed = packed_layout(source_->type(id), isa_);
    const uint64_t bytes = packed_bytes(matrix.packed);
    try {
        const std::byte* data = load_from_file(id, matrix.packed, threads);
        if (!data) {
            if (!matrix.place) matrix.place = pool_.allocate(bytes);
            pack(*source_, id, matrix.packed, threads, matrix.place);
            data = matrix.place;
        }
        matrix.packed.data = reinterpret_cast<const unsigned char*>(data);
    } catch (const std::bad_alloc&) {
        throw OutOfMemory(text("cpu: not enough memory to pack weight ", source_->name(id), ", ",
                               bytes, " bytes"));
    }
    bytes_ += bytes;
}

// Returns the matrix in the file, which is packed into it if it is not there; null without a file.
const std::byte* CpuWeights::load_from_file(WeightId id, const PackedWeight& layout, int threads) {
    if (!file_opened_) open_file();
    if (!file_) return nullptr;
    if (const std::byte* found = file_->find(id)) return found;
    return file_->fill(id, [&](const PackedFile::WriteAt& write) {
        pack(*source_, id, layout, threads, nullptr, write);
    });
}

void CpuWeights::open_file() {
    file_opened_ = true;
    const KeptCopies kept = source_->kept_copies();
    if (kept.folder.empty()) return;
    const std::vector<uint64_t> bytes = sizes_of(*source_, isa_);
    if (std::reduce(bytes.begin(), bytes.end(), uint64_t{0}) < kept.min_bytes) return;
    file_ = PackedFile::open(kept.folder, text(kept.identity, to_string(isa_)), bytes,
                             platform::is_local(kept.folder));
}

const float* CpuWeights::vector(WeightId id) {
    PLAIT_CHECK(id < vectors_.size());
    const std::lock_guard lock(mutex_);
    if (!vectors_[id]) {
        const TensorType& type = source_->type(id);
        const auto elements = static_cast<uint64_t>(type.shape.elements());
        try {
            std::vector<std::byte> stored(type.bytes());
            source_->read(id, 0, stored);
            auto values = std::make_unique<std::vector<float>>(elements);
            dequantize(type.dtype, stored.data(), values->data(), elements);
            vectors_[id] = std::move(values);
        } catch (const std::bad_alloc&) {
            throw OutOfMemory(text("cpu: not enough memory for weight ", source_->name(id), ", ",
                                   elements * sizeof(float), " bytes"));
        }
        bytes_ += elements * sizeof(float);
    }
    return vectors_[id]->data();
}

}  // namespace plait::cpu
