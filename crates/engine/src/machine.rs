//! [`StateMachine`]: the calls by which a host drives a pool, as a trait. The daemon and the
//! simulator drive the [`Engine`] through it, and in their tests something simpler in its place.

use std::collections::BTreeMap;

use millpond_block::{Answer, Buf, Completion, DeviceSlot, Io, IoDone, Payload, Query, Request, Tag};

use crate::{
    BucketError, BucketState, BucketWork, CodecWork, Command, CommandError, DiffExtent, Engine, Entry, Fetch, FetchError, Invalid,
    LabelsInForce, Metrics, PoolInfo, PoolState, Reply, Target, Time, VolumeId, VolumeInfo, VolumeOptions,
};

/// A pool as a state machine: requests, commands, completed device operations and time go in;
/// device operations, completions and replies come out. The methods are those of [`Engine`], where
/// they are documented.
pub trait StateMachine {
    /// Returns the state of the pool.
    fn state(&self) -> &PoolState;
    /// Starts a guest request; never blocks.
    fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>);
    /// As [`submit`](Self::submit), for a guest that sees a file.
    fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>);
    /// Starts a request that the limits of its volume have admitted, in one of these two ways.
    fn enter(&mut self, entry: Entry<'_>) {
        let Entry { target, tag, request, payload, bytes } = entry;
        if bytes { self.submit_bytes(target, tag, request, payload) } else { self.submit(target, tag, request, payload) }
    }
    /// Returns the next completion of a guest request.
    fn pop_completion(&mut self) -> Option<Completion>;
    /// Starts a query; never blocks.
    fn query(&mut self, target: Target, tag: Tag, query: Query);
    /// Returns the next answer to a query.
    fn pop_answer(&mut self) -> Option<Answer>;
    /// Starts a command.
    fn command(&mut self, tag: Tag, command: Command);
    /// Returns the next reply to a command.
    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)>;
    /// Starts to compare two states.
    fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target);
    /// Returns the next result of a comparison.
    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)>;
    /// Continues requests, without background work.
    fn answer(&mut self, _now: Time) {}
    /// Works on everything that it has taken; true when it wants to be called again soon.
    fn turn(&mut self, now: Time) -> bool;
    /// Sets the time of a clock that only passes, in milliseconds.
    fn pass(&mut self, _host: u64) {}
    /// Returns the next device operation to start.
    fn pop_io(&mut self) -> Option<Io>;
    /// Reports the end of a device operation.
    fn io_done(&mut self, done: IoDone);
    /// Returns the next compression or decompression to do, on any thread and in any order.
    fn pop_codec_work(&mut self) -> Option<CodecWork> {
        None
    }
    /// Takes back such work that was done.
    fn codec_done(&mut self, _work: CodecWork) {}
    /// Returns the next chunk of a base to fetch.
    fn pop_fetch(&mut self) -> Option<Fetch> {
        None
    }
    /// Takes the result of a fetch.
    fn fetched(&mut self, _fetch: Fetch, _result: Result<Option<Buf>, FetchError>) {}
    /// Returns whether reads wait for a chunk that is being fetched.
    fn is_fetch_wanted(&self, _fetch: Fetch) -> bool {
        true
    }
    /// Fails the requests that wait for chunks of bases and whose tags `of` accepts.
    fn end_fetch_waits(&mut self, _of: &dyn Fn(Tag) -> bool) {}
    /// Returns the next request to the pool's bucket.
    fn pop_bucket_work(&mut self) -> Option<BucketWork> {
        None
    }
    /// Takes the result of such a request.
    fn bucket_done(&mut self, _id: u64, _result: Result<Option<Buf>, BucketError>) {}
    /// Reports what the caller knows of the pool's bucket.
    fn set_bucket(&mut self, _state: BucketState) -> Result<(), CommandError> {
        Err(CommandError::Invalid(Invalid::NoBucket))
    }
    /// Reports that operations of a device are throttled on purpose.
    fn excuse(&mut self, _device: DeviceSlot) {}
    /// Returns the slots of devices that did not answer while the pool was opened.
    fn unanswered(&self) -> &[DeviceSlot] {
        &[]
    }
    /// Returns the time until which operations other than reads may be handed to devices; `None`
    /// means without limit.
    fn lease(&self) -> Option<Time> {
        None
    }
    /// Takes back an operation that came too late for the lease. Without a lease there is none.
    fn take_back(&mut self, _io: Io) {}
    /// Returns the pool, as listed; `None` until it is known. Until then neither commands nor
    /// comparisons are answered.
    fn pool(&self) -> Option<PoolInfo>;
    /// Returns the volumes, as listed.
    fn volumes(&self) -> Vec<VolumeInfo>;
    /// Returns the options of the volumes that have other than the default ones.
    fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions>;
    /// Returns the labels in force; `None` while they are being written.
    fn labels_in_force(&self) -> Option<LabelsInForce> {
        None
    }
    /// Returns the counters since the import.
    fn metrics(&self) -> Metrics;
}

impl StateMachine for Engine {
    fn state(&self) -> &PoolState {
        Engine::state(self)
    }
    fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        Engine::submit(self, target, tag, request, payload);
    }
    fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        Engine::submit_bytes(self, target, tag, request, payload);
    }
    fn pop_completion(&mut self) -> Option<Completion> {
        Engine::pop_completion(self)
    }
    fn query(&mut self, target: Target, tag: Tag, query: Query) {
        Engine::query(self, target, tag, query);
    }
    fn pop_answer(&mut self) -> Option<Answer> {
        Engine::pop_answer(self)
    }
    fn command(&mut self, tag: Tag, command: Command) {
        Engine::command(self, tag, command);
    }
    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)> {
        Engine::pop_reply(self)
    }
    fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target) {
        Engine::start_diff(self, tag, older, newer);
    }
    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)> {
        Engine::pop_diff(self)
    }
    fn answer(&mut self, now: Time) {
        Engine::answer(self, now);
    }
    fn turn(&mut self, now: Time) -> bool {
        Engine::turn(self, now)
    }
    fn pass(&mut self, host: u64) {
        Engine::pass(self, host);
    }
    fn pop_io(&mut self) -> Option<Io> {
        Engine::pop_io(self)
    }
    fn io_done(&mut self, done: IoDone) {
        Engine::io_done(self, done);
    }
    fn pop_codec_work(&mut self) -> Option<CodecWork> {
        Engine::pop_codec_work(self)
    }
    fn codec_done(&mut self, work: CodecWork) {
        Engine::codec_done(self, work);
    }
    fn pop_fetch(&mut self) -> Option<Fetch> {
        Engine::pop_fetch(self)
    }
    fn fetched(&mut self, fetch: Fetch, result: Result<Option<Buf>, FetchError>) {
        Engine::fetched(self, fetch, result);
    }
    fn pop_bucket_work(&mut self) -> Option<BucketWork> {
        Engine::pop_bucket_work(self)
    }
    fn bucket_done(&mut self, id: u64, result: Result<Option<Buf>, BucketError>) {
        Engine::bucket_done(self, id, result);
    }
    fn set_bucket(&mut self, state: BucketState) -> Result<(), CommandError> {
        Engine::set_bucket(self, state)
    }
    fn is_fetch_wanted(&self, fetch: Fetch) -> bool {
        Engine::is_fetch_wanted(self, fetch)
    }
    fn end_fetch_waits(&mut self, of: &dyn Fn(Tag) -> bool) {
        Engine::end_fetch_waits(self, of);
    }
    fn excuse(&mut self, device: DeviceSlot) {
        Engine::excuse(self, device);
    }
    fn unanswered(&self) -> &[DeviceSlot] {
        Engine::unanswered(self)
    }
    fn lease(&self) -> Option<Time> {
        Engine::lease(self)
    }
    fn take_back(&mut self, io: Io) {
        Engine::take_back(self, io);
    }
    fn pool(&self) -> Option<PoolInfo> {
        Engine::pool(self)
    }
    fn volumes(&self) -> Vec<VolumeInfo> {
        Engine::volumes(self)
    }
    fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions> {
        Engine::options(self)
    }
    fn labels_in_force(&self) -> Option<LabelsInForce> {
        Engine::labels_in_force(self)
    }
    fn metrics(&self) -> Metrics {
        Engine::metrics(self)
    }
}
