// A context: its fixed settings, and a session that a lock protects. Calls from several threads run
// one after the other.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/locked.h"
#include "runtime/session.h"

namespace plait {

// The calls that a capture kept, and its sink, if it has one.
struct StoppedCapture {
    std::vector<CapturedCall> calls;
    std::shared_ptr<CaptureSink> sink;
};

class Context {
public:
    // Throws what resolve() and the construction of a Session throw.
    Context(std::shared_ptr<const LoadedModel> model, const ContextOptions& options);

    const std::shared_ptr<const LoadedModel>& model() const { return model_; }
    const ContextSettings& settings() const { return settings_; }
    bool invariant() const { return invariant_; }  // requested, and supported by the devices
    // In the order of Stats::nodes.
    const std::vector<std::string>& all_devices() const { return all_devices_; }

    // `context.session()->seq_rm(...)` calls the session with the lock held. Throws InvalidArgument
    // after close().
    const Locked<Session>& session() const { return session_; }

    // Replaces the contents of the other context's memory; see Session::copy_state_to().
    void copy_state_to(const Context& other) const;

    // Destroys the session. Afterwards, only the functions below may be called.
    void close() noexcept;
    bool closed() const;
    std::vector<std::string> devices() const;  // devices that plans have computed on, in order
    Stats stats() const;
    void reset_stats();
    void close_sequence(SequenceId sequence) const;  // does nothing after close()
    // Return the calls recorded since the last take_captured().
    std::vector<CapturedCall> take_captured();
    StoppedCapture stop_capture();
    // The same for gradients; stop_gradients() also returns the loss.
    std::vector<GradientCall> take_gradients();
    std::pair<std::vector<GradientCall>, std::shared_ptr<Loss>> stop_gradients();
    std::shared_ptr<const ValueEdit> stop_edit(uint64_t id);  // returns the edit; null if unknown
    std::vector<TracedNode> take_trace() const;               // empty after close()

private:
    std::shared_ptr<const LoadedModel> model_;
    ContextSettings settings_;
    std::vector<std::string> all_devices_;
    bool invariant_ = false;
    // Guarded by the lock of the session.
    Attachments attachments_;
    Stats last_stats_;                // of a closed session
    uint32_t last_used_devices_ = 0;  // of a closed session
    Locked<Session> session_;
};

}  // namespace plait
