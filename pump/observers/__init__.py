"""Listeners for a Dispatcher that pass its events on: counters for Prometheus, spans for OpenTelemetry.

Imports: `pump.message`, `pump.settling` and `pump.telemetry`; each module the one library that it serves.
Begin with: `prometheus`.
"""
