// Models, damaged at random, opened, read and run: an error that says why, or a model that works.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "batch/batch.h"
#include "fuzz/fuzz.h"
#include "gguf/reader.h"
#include "runtime/context.h"
#include "support/tiny_model.h"

namespace plait {
namespace {

using test::Damage;

std::string contents(const std::filesystem::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
}

// A model to damage, and where its weights begin.
struct Base {
    std::string bytes;
    size_t n_head;
};

// One of each kind of memory, where the reference data is.
std::vector<Base> bases() {
    const test::GgufWriter tiny = test::TinyModel{.n_layers = 1, .n_vocab = 16}.writer();
    std::vector<Base> all = {{tiny.bytes(), tiny.head().size()}};
    const char* data = std::getenv("PLAIT_TEST_DATA");
    for (const char* kind : {"gemma3", "jamba", "t5", "rwkv7", "deepseek2", "bert"}) {
        const auto path =
            std::filesystem::path(data ? data : "") / "conformance" / kind / "model.gguf";
        if (!std::filesystem::exists(path)) continue;
        const std::string bytes = contents(path);
        uint64_t first = bytes.size();
        const auto file = gguf::File::open(path.string());
        for (const gguf::TensorInfo& tensor : file->tensors())
            first = std::min(first, tensor.offset);
        all.push_back({bytes, first});
    }
    return all;
}

void expect_words(const std::exception& error) {
    EXPECT_GT(std::string_view(error.what()).size(), 10u) << error.what();
    EXPECT_EQ(std::string_view(error.what()).find("internal"), std::string_view::npos);
}

// Whatever a file may cause; InternalError is none of it.
template <typename Call>
void allowed(Call call) {
    try {
        call();
    } catch (const ModelError& error) {
        expect_words(error);
    } catch (const UnsupportedError& error) {
        expect_words(error);
    } catch (const InvalidArgument& error) {
        expect_words(error);
    } catch (const BatchError& error) {
        expect_words(error);
    } catch (const CacheFull& error) {
        expect_words(error);
    } catch (const std::bad_alloc&) {
    }
}

TEST(FuzzGguf, AnyDamageIsRefusedOrRead) {  // G4 R1 R2 R3 R4 R5
    RecordProperty("goal", "G4");
    const test::TempFolder folder;
    const std::vector<Base> all = bases();
    test::fuzz([&](Damage& damage) {
        const Base& base = all[damage.below(all.size())];
        std::string bytes = base.bytes;
        damage.make(bytes, base.n_head);
        const std::string path = folder.write("m.gguf", bytes);
        allowed([&] {
            const auto file = gguf::File::open(path, {.mmap = damage.below(2) == 0});
            std::vector<std::byte> data;
            for (const gguf::TensorInfo& tensor : file->tensors()) {
                ASSERT_LE(tensor.bytes, bytes.size());
                data.resize(tensor.bytes);
                file->read(tensor, 0, data);
            }
            ASSERT_LE(file->total_bytes(), bytes.size());
        });
    });
}

TEST(FuzzModel, AnyDamageIsRefusedOrRuns) {  // G4 R6 R8
    RecordProperty("goal", "G4");
    const test::TempFolder folder;
    const std::vector<Base> all = bases();
    test::fuzz([&](Damage& damage) {
        const Base& base = all[damage.below(all.size())];
        std::string bytes = base.bytes;
        damage.make(bytes, base.n_head);
        const std::string path = folder.write("m.gguf", bytes);
        allowed([&] {
            ContextOptions options;
            options.n_ctx = 32;
            options.n_seq_max = 2;
            options.n_ubatch = 8;
            options.n_batch = 16;
            options.threads = 1 + static_cast<int>(damage.below(2));
            Context context(LoadedModel::open(path, {}), options);
            Batch batch;
            for (const SequenceId s : {0, 1})
                for (int i = 0; i < 5; ++i) batch.add(1 + i, {}, std::span(&s, 1), i == 4);
            const ModelInfo& info = context.model()->info();
            if (info.has_encoder || !info.has_decoder) context.session()->encode(batch.view());
            if (info.has_decoder) context.session()->decode(batch.view());
        });
    });
}

}  // namespace
}  // namespace plait
