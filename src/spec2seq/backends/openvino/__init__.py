"""The engine for plain CPUs: networks exported from `nn` and run by OpenVINO."""
