//! Routes of the daemon itself: status, jobs, events, metrics, OpenAPI document.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use jiff::Timestamp;
use millpond_api::{Condition, ErrorBody, Event, Job, Severity, SinkTest, Status};
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::input::QueryString;
use super::refused::Refused;
use crate::Daemon;
use crate::access::Caller;
use crate::events::From;
use crate::metrics::Format;

/// Time after which a stream without events looks whether its caller is still valid.
const RECHECK: Duration = Duration::from_secs(5);

pub(super) fn routes() -> OpenApiRouter<Arc<Daemon>> {
    OpenApiRouter::new()
        .routes(routes!(status))
        .routes(routes!(conditions))
        .routes(routes!(test_sinks))
        .routes(routes!(events))
        .routes(routes!(jobs))
        .routes(routes!(metrics))
        .routes(routes!(describe))
}

/// Returns the status of the daemon, its pools and its exports.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status), (status = "default", body = ErrorBody)))]
async fn status(State(daemon): State<Arc<Daemon>>, caller: Caller) -> Result<Json<Status>, Refused> {
    let mut status = daemon.status().await?;
    status.pools.retain(|pool| caller.may_use(&pool.name));
    status.exports.retain(|export| caller.may_use_name(&export.name));
    status.receives.retain(|receive| caller.may_use_name(&receive.volume));
    status.conditions.retain(|condition| is_about_pools_of(&caller, condition));
    Ok(Json(status))
}

/// Lists the conditions that last, most severe first.
#[utoipa::path(get, path = "/v1/conditions", responses((status = 200, body = [Condition]), (status = "default", body = ErrorBody)))]
async fn conditions(State(daemon): State<Arc<Daemon>>, caller: Caller) -> Result<Json<Vec<Condition>>, Refused> {
    let mut conditions = daemon.status().await?.conditions;
    conditions.retain(|condition| is_about_pools_of(&caller, condition));
    Ok(Json(conditions))
}

/// Returns true for conditions of pools that the caller may use; those of the host and of sinks are for
/// callers for all pools.
fn is_about_pools_of(caller: &Caller, condition: &Condition) -> bool {
    condition.pool.as_ref().map_or(caller.pools.is_none(), |pool| caller.may_use(pool))
}

/// Sends a test alert to each sink of the configuration, and reports the results.
#[utoipa::path(post, path = "/v1/sinks/test", responses((status = 200, body = [SinkTest]), (status = "default", body = ErrorBody)))]
async fn test_sinks(State(daemon): State<Arc<Daemon>>) -> Json<Vec<SinkTest>> {
    Json(daemon.test_sinks().await)
}

/// Lists the jobs that run in the background.
#[utoipa::path(get, path = "/v1/jobs", responses((status = 200, body = [Job])))]
async fn jobs(State(daemon): State<Arc<Daemon>>, caller: Caller) -> Json<Vec<Job>> {
    let mut jobs = daemon.jobs().await;
    jobs.retain(|job| caller.may_use(&job.pool));
    Json(jobs)
}

/// Filter for events.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// Time from which stored events are sent first. Without it, no stored events are sent.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Number of the last event that the client has seen, instead of a time: stored events after it
    /// are sent first. All are sent if the daemon has not reached that number.
    after: Option<u64>,
    /// Lowest severity of events that are sent.
    #[param(inline)]
    severity: Option<Severity>,
    /// If true (the default), new events are sent as they happen.
    follow: Option<bool>,
}

/// Sends events, one JSON object per line.
///
/// Stored events since a given time come first, then new events, until the client disconnects or
/// the daemon stops.
#[utoipa::path(get, path = "/v1/events", params(Wanted),
    responses((status = 200, body = Event, content_type = "application/x-ndjson"), (status = "default", body = ErrorBody)))]
async fn events(State(daemon): State<Arc<Daemon>>, caller: Caller, QueryString(wanted): QueryString<Wanted>) -> Response {
    let from = match (wanted.after, wanted.since) {
        (Some(number), _) => From::After(number),
        (None, Some(since)) => From::Time(since),
        (None, None) => From::Now,
    };
    let (before, listener) = daemon.listen_from(from);
    let last = before.last().map_or(0, |event| event.number);
    let least = wanted.severity.unwrap_or_default();
    let before: Vec<Result<Bytes, Infallible>> =
        before.into_iter().filter(|event| is_for(event, least, &caller)).map(|event| Ok(line(&event))).collect();
    let body = match wanted.follow {
        Some(false) => Body::from_stream(stream::iter(before)),
        _ => Body::from_stream(stream::iter(before).chain(coming(daemon, listener, least, caller, last))),
    };
    ([(CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

/// Returns true if a caller wants an event and may see it. Events of no pool are for callers that may
/// use all pools.
fn is_for(event: &Event, least: Severity, caller: &Caller) -> bool {
    let may = caller.pools.is_none() || event.pool.as_ref().is_some_and(|pool| caller.may_use(pool));
    may && event.severity.is_at_least(least)
}

/// Formats an event as a line.
fn line(event: &Event) -> Bytes {
    Bytes::from(serde_json::to_string(event).unwrap_or_default() + "\n")
}

/// Returns the lines of new events, as long as the caller's token or session is valid. `last` is the
/// number of the last one that the client has.
fn coming(
    daemon: Arc<Daemon>,
    listener: Receiver<Event>,
    least: Severity,
    caller: Caller,
    last: u64,
) -> impl Stream<Item = Result<Bytes, Infallible>> + use<> {
    let stopping = daemon.stopping();
    let lines = stream::unfold((listener, stopping, last), move |(mut listener, mut stopping, mut last)| {
        let (daemon, caller) = (Arc::clone(&daemon), caller.clone());
        async move {
            loop {
                let event = tokio::select! {
                    event = listener.recv() => Some(event),
                    _ = stopping.wait_for(|stopping| *stopping) => return None,
                    () = tokio::time::sleep(RECHECK) => None,
                };
                if !daemon.access.is_valid(&caller) {
                    return None;
                }
                match event {
                    None => {}
                    Some(Ok(event)) => {
                        last = event.number;
                        if is_for(&event, least, &caller) {
                            return Some((vec![Ok(line(&event))], (listener, stopping, last)));
                        }
                    }
                    // A slow listener has missed events, which are remembered.
                    Some(Err(RecvError::Lagged(_))) => {
                        let (missed, again) = daemon.listen_from(From::After(last));
                        listener = again;
                        last = missed.last().map_or(last, |event| event.number);
                        let lines = missed.iter().filter(|event| is_for(event, least, &caller)).map(|event| Ok(line(event)));
                        return Some((lines.collect(), (listener, stopping, last)));
                    }
                    Some(Err(RecvError::Closed)) => return None,
                }
            }
        }
    });
    lines.flat_map(stream::iter)
}

/// Returns metrics for Prometheus.
///
/// The format is OpenMetrics if the header `Accept` names it, else Prometheus's text format.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, content(
        (String = "text/plain; version=0.0.4; charset=utf-8"),
        (String = "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ), description = "All series; docs/metrics.md lists them"),
    (status = "default", body = ErrorBody)))]
async fn metrics(State(daemon): State<Arc<Daemon>>, headers: HeaderMap) -> Result<Response, Refused> {
    let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = Format::accepted(&accept.join(","));
    let text = daemon.metrics(format).await?;
    Ok(([(CONTENT_TYPE, format.content_type())], text).into_response())
}

/// Returns this OpenAPI document.
#[utoipa::path(get, path = "/v1/openapi.json", responses((status = 200, description = "OpenAPI 3.1 document")))]
async fn describe() -> Json<utoipa::openapi::OpenApi> {
    Json(super::document())
}
