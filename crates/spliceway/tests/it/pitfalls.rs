//! Faults this field has had, each as the scenario that showed it.
