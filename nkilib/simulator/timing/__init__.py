"""The model of time: what instructions cost, and when engines are busy. Modelled, not measured."""
